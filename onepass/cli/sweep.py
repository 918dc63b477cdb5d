"""onepass sweep"""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from onepass import executors
from onepass.base import devices
from onepass.base.errors import DataError, InputError, RunError, UnknownNameError
from onepass.base.text import plain, quoted
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import Imports, app, messages, say
from onepass.cli.progress import ManyBars
from onepass.cli.run import at_once, checkpoint_steps
from onepass.executors import RunOptions
from onepass.runs import environment, lines, status
from onepass.runs import folder as record
from onepass.runs.folder import RunFolder
from onepass.runs.resources import Supplies
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.sweeps import runner
from onepass.sweeps import sweep_file as sweeps
from onepass.sweeps.durations import Durations
from onepass.sweeps.runner import EndedRun, SurveyedRun
from onepass.sweeps.sweep_file import PlannedRun

DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", re.ASCII)
STARTS_ANEW = "starts them anew (--out keeps what was begun)"
UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass
class Tally:
    """What becomes of the runs, as they end; and what is done with each."""

    append: Path | None
    as_json: bool
    skipped: int = 0
    finished: int = 0
    failed: list[str] = field(default_factory=list)
    goes_on: str = "goes on"

    def keep(self, result: Result) -> None:
        """As a line, if that is wanted, and once, whoever else appends to the file."""
        if self.append is not None:
            lines.append(self.append, result, once=True)

    def add(self, job: Job, ended: EndedRun, out: Path) -> None:
        if isinstance(ended.outcome, Exception):
            log = RunFolder.of(job, out).log_file
            told = f"{ended.outcome}; see {log}" if log.exists() else str(ended.outcome)
            self.failed.append(told if job.folder_name in told else f"{job.folder_name}: {told}")
            return
        self.skipped += ended.elsewhere
        self.finished += not ended.elsewhere
        self.keep(ended.outcome)
        if self.as_json:
            typer.echo(json.dumps(ended.outcome.printed()))

    def tell(self, left: int, where: str) -> None:
        """To people: what was done, and what is wrong."""
        for one in self.failed:
            messages.print(plain(f"failed: {one}"))
        counts = {"finished": self.finished, "skipped": self.skipped, "failed": len(self.failed)}
        told = [f"{count} {word}" for word, count in counts.items()]
        told += [f"{left} left: the same command {self.goes_on}"] if left else []
        messages.print(plain(f"{', '.join(told)}{where}"))


@app.command(
    epilog="""\b
Examples:
  onepass sweep experiments/digits.toml --out runs/ --dry-run
  onepass sweep experiments/digits.toml --out runs/ --jobs auto
  onepass sweep experiments/table1.toml --out runs/ --jobs auto --fail-fast
  onepass sweep experiments/table1.toml --for 20m --append results/lines/table1.jsonl
  onepass sweep experiments/table1.toml --dataset cifar100 --out runs/

The same command goes on where it was stopped. The file is TOML; docs/sweeps.md explains it."""
)
def sweep(
    file: Annotated[Path, typer.Argument(help="Which runs: a TOML file.")],
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Only the runs on this one; repeatable.", autocompletion=shared.datasets),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where run folders go (default: runs; with --append, none are kept)."),
    ] = None,
    append: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Add a line for each run; skip those it holds."),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Start only what will end in 90s, 20m, 2h."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs, how far they are, how long they take.")
    ] = False,
    jobs: shared.Jobs = "1",
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="End with the first run that fails.")
    ] = False,
    device: shared.Device = Job.device,
    data_root: shared.DataRoot = None,
    checkpoint: shared.Checkpoint = str(RunOptions.checkpoint),
    anyway: shared.Anyway = RunOptions.anyway,
    imports: Imports = None,
    columns: shared.Columns = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per run, nothing else.")
    ] = False,
) -> None:
    """Do all runs of a file that are not done yet."""
    until = math.inf if time_limit is None else time.monotonic() + _seconds(time_limit)
    root = str(data_root) if data_root else None
    chosen = str(devices.resolve(device))
    planned = sweeps.read(file, device=chosen, data_root=root, imports=imports or ())
    planned = _on(dataset or (), planned, file)
    planned = sweeps.without_repeats(known(planned, all_data=append is not None))
    if any(one.job.deterministic for one in planned):
        devices.allow_determinism()
    with _folder(out, append) as folder:
        held = lines.read(append) if append is not None and append.exists() else []
        entries = runner.survey(planned, folder, held)
        durations = Durations([*held, *(one.result for one in entries if one.result)])
        if dry_run:
            _show(entries, durations, as_json, columns)
            return
        kept = out is not None or append is None
        _tell_of_probes(entries, kept=kept)
        _tell_of_changed_methods(entries)
        tally = Tally(append, as_json, goes_on="goes on" if kept else STARTS_ANEW)
        options = RunOptions(folder, True, checkpoint_steps(checkpoint), anyway)
        complete(
            entries,
            options,
            durations,
            tally,
            jobs=jobs,
            until=until,
            held={one.identity for one in held},
            fail_fast=fail_fast,
            where="" if out is None and append is not None else f"; in {folder}",
        )
    if tally.failed:
        raise typer.Exit(1)


def complete(
    entries: Sequence[SurveyedRun],
    options: RunOptions,
    durations: Durations,
    tally: Tally,
    *,
    jobs: str,
    where: str,
    until: float = math.inf,
    held: Container[str] = (),
    fail_fast: bool = False,
) -> None:
    """Runs what is not finished, with bars, and says in the end what became of all."""
    todo = _to_do(entries, held, tally)
    executor = executors.choose([one.job for one in entries], at_once(jobs), isolated=True)
    if until == math.inf:  # else only few of them may ever start
        runner.check(todo, executor)
    record.make_folder(options.out)  # if it cannot be, no run can, and that is said once
    try:
        _carry_out(todo, options, executor, durations, until, tally, fail_fast)
    finally:
        left = len(entries) - tally.finished - tally.skipped - len(tally.failed)
        tally.tell(left, where)


def _carry_out(
    todo: Sequence[PlannedRun],
    options: RunOptions,
    executor: executors.Executor,
    durations: Durations,
    until: float,
    tally: Tally,
    fail_fast: bool,
) -> None:
    """Each run has a process of its own, so that one that is killed takes no other with it."""
    jobs, left = [one.job for one in todo], set(range(len(todo)))
    with ManyBars(jobs, tally.skipped) as bars:
        endings = runner.carry_out(todo, options, executor, durations, bars.watch, until=until)
        with closing(endings):
            for ended in endings:
                left.remove(ended.number)
                tally.add(jobs[ended.number], ended, options.out)
                bars.end(ended.number, failed=isinstance(ended.outcome, Exception))
                if fail_fast and tally.failed:
                    break
    for number in left:  # what came to its end in the moment in which all was stopped
        if result := status.finished(RunFolder.of(jobs[number], options.out), jobs[number]):
            tally.add(jobs[number], EndedRun(number, result), options.out)


def _on(datasets: Sequence[str], planned: Sequence[PlannedRun], file: Path) -> list[PlannedRun]:
    """The runs on these datasets, or all: not every machine has the files of every dataset."""
    names = {one.job.dataset for one in planned}
    for name in datasets:
        if name not in names:
            raise UnknownNameError(f"dataset of {file}", name, names)
    return [one for one in planned if not datasets or one.job.dataset in datasets]


def known(planned: Sequence[PlannedRun], *, all_data: bool) -> list[PlannedRun]:
    """With the fingerprints of their data. To find a run among lines there is no way without; run
    folders of datasets that have a name are found without, and their data may be gone."""
    supplies = Supplies()

    def with_fingerprint(job: Job) -> Job:
        try:
            return supplies.known(job)
        except DataError:
            if all_data or job.is_own:
                raise
            return job

    return [replace(one, job=with_fingerprint(one.job)) for one in planned]


@contextmanager
def _folder(out: Path | None, append: Path | None) -> Iterator[Path]:
    """Where run folders go: who wants lines only has them for as long as they take."""
    if out is None and append is not None:
        with tempfile.TemporaryDirectory(prefix="onepass-") as folder:
            yield Path(folder)
    else:
        yield out or Path("runs")


def _to_do(entries: Sequence[SurveyedRun], held: Container[str], tally: Tally) -> list[PlannedRun]:
    """What is not finished. What is, and not yet among the lines that are held, becomes one there;
    damaged folders are moved out of the way, and said."""
    todo = []
    for one in entries:
        if one.result is not None:
            tally.skipped += 1
            if one.result.identity not in held:
                tally.keep(one.result)
            continue
        if one.state == "damaged" and (moved := status.set_aside(one.folder)):
            problem, aside = moved
            messages.print(plain(f"{problem}; moved to {aside.name}, and run again"))
        todo.append(one.planned)
    return todo


def _tell_of_probes(entries: Sequence[SurveyedRun], *, kept: bool) -> None:
    """What a probe says lies in run folders and nowhere else, and a finished run is not watched
    again."""
    watched = [one for one in entries if one.job.probes]
    if watched and not kept:
        messages.print("what probes say is not kept: it lies in run folders, which need --out")
        return
    skipped = [
        one.job.folder_name
        for one in watched
        if one.result is not None and set(one.job.probes) - _probes_of(one.folder)
    ]
    if skipped:
        told = f"finished runs that not all of their probes watched are skipped: {len(skipped)}"
        anew = "another --out, and another --append file, run them again"
        messages.print(plain(f"{told}, such as {skipped[0]}; {anew}"))


def _tell_of_changed_methods(entries: Sequence[SurveyedRun]) -> None:
    """A finished run is skipped although its method, one of the user's own, is another by now."""
    changed = []
    for one in entries:
        if one.result is not None and (now := environment.source_of(one.job.method)):
            last = environment.last_computed_by(_described(one.folder), one.result.other_versions)
            changed += [one.job.folder_name] if last.get("source", now) != now else []
    if changed:
        told = f"finished runs of another state of their method's file are skipped: {len(changed)}"
        anew = "another --out, or a higher revision of the method, runs them again"
        messages.print(plain(f"{told}, such as {changed[0]}; {anew}"))


def _probes_of(folder: RunFolder) -> set[str]:
    return set(_described(folder).get("probes", []))


def _described(folder: RunFolder) -> dict[str, Any]:
    """Nothing, if there is no such folder: the run is known by its line."""
    with suppress(RunError):
        return folder.description() or {}
    return {}


# ---- --dry-run


def _show(
    entries: Sequence[SurveyedRun], durations: Durations, as_json: bool, columns: str | None
) -> None:
    expected = [None if one.result else durations.expected(one.job) for one in entries]
    rows = [
        {
            "run": one.job.folder_name,
            "variant": str(one.job.variant),
            "priority": one.planned.priority + 1,
            "state": one.state,
        }
        for one in entries
    ]
    if as_json:
        for row, seconds in zip(rows, expected, strict=True):
            typer.echo(json.dumps({**row, "expected_seconds": seconds}))
        return
    times = ["" if seconds is None else _time(seconds) for seconds in expected]
    timed = [{**row, "expected": shown} for row, shown in zip(rows, times, strict=True)]
    terminal_table.show_rows(timed, columns)
    counts = Counter(one.state for one in entries)
    say(", ".join(f"{count} {state}" for state, count in counts.items()))
    unknown = sum(count for state, count in counts.items() if state != "finished")
    unknown -= sum(seconds is not None for seconds in expected)
    known = f"{_time(sum(seconds or 0 for seconds in expected))} one after another"
    more = f"{unknown} of unknown length"
    measured = any(expected) or not unknown
    say(f"expected: {', and '.join([known] * measured + [more] * bool(unknown))}")


def _time(seconds: float) -> str:
    """>>> _time(7.2), _time(600), _time(9000)
    ('7 s', '10.0 m', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} m" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _seconds(text: str) -> float:
    """>>> _seconds("90s"), _seconds("20m"), _seconds("1.5h")
    (90.0, 1200.0, 5400.0)
    """
    found = DURATION.fullmatch(text)
    if not found or float(found[1]) == 0:
        raise InputError(f"--for takes a time such as 90s, 20m or 2h, not {quoted(text)}")
    return float(found[1]) * UNITS[found[2]]
