"""`onepass.sweep`: all runs of a file that are not done yet."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onepass import executors
from onepass.base import devices
from onepass.base.errors import DataError, InputError, UnknownNameError
from onepass.base.settings import expect_type
from onepass.executors import RunOptions
from onepass.runs import lines
from onepass.runs.folder import RunFolder, make_folder
from onepass.runs.result import Result
from onepass.runs.spec import CheckpointEvery, Job
from onepass.runs.status import RunStatus, finished_result, set_aside_if_damaged
from onepass.sweeps import runner, sweep_file
from onepass.sweeps.durations import Durations
from onepass.sweeps.notices import notices
from onepass.sweeps.runner import EndedRun, SurveyedRun
from onepass.sweeps.sweep_file import PlannedRun

if TYPE_CHECKING:
    from onepass.evaluation.callbacks import Progress
    from onepass.executors import AtOnce, Executor

OUT = Path("runs")
log = logging.getLogger("onepass")


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep, and what has become of it: it was `finished` here, `skipped` since it had
    finished before or another process has run it, it has `failed` with a problem, or is `left`.
    Of a dry run `state` is how far it is, and the seconds are those that it is expected to take.
    `priority` is the number of its grid, from 1."""

    job: Job
    priority: int
    state: RunStatus | Literal["skipped", "failed", "left"]
    result: Result | None = None
    problem: str = ""
    expected_seconds: float | None = None

    @property
    def name(self) -> str:
        return self.job.folder_name


class SweepListener:
    """Follows a sweep; a subclass writes only those hooks that it needs. Runs have their numbers in
    the list that `sweep` returns."""

    def started(self, runs: Sequence[SweptRun]) -> None:
        """Whatever can be refused has been, and the first run comes next: those that were finished
        before are `skipped`, all others `left`."""

    def progressed(self, number: int, progress: Progress) -> None:
        """A run goes on."""

    def ended(self, number: int, run: SweptRun) -> None:
        """A run has ended, here or in another process."""

    def noted(self, text: str) -> None:
        """There is something that the user should know."""
        log.warning("%s", text)


def sweep(
    file: Path | str | Mapping[str, Any],
    *,
    dataset: str | Sequence[str] = (),
    out: Path | str | None = None,
    append: Path | str | None = None,
    time_limit: float | None = None,
    dry_run: bool = False,
    jobs: AtOnce = 1,
    fail_fast: bool = False,
    device: str = "auto",
    data_root: Path | str | None = None,
    checkpoint: CheckpointEvery = "auto",
    anyway: bool = False,
    imports: Sequence[str] = (),
    listener: SweepListener | None = None,
) -> list[SweptRun]:
    """Does all runs of a file that are not done yet, as the command `onepass sweep` does, and
    returns what has become of each.

    A run that fails stops no other and raises nothing; what can be refused before the first run
    starts is raised. Runs are in processes of their own: a script that calls this must do so below
    `if __name__ == "__main__":`.

    Parameters
    ----------
    file:
        A TOML file (see `docs/sweeps.md`), or a dictionary of what would stand in one.
    dataset:
        Only the runs on this one, or on these.
    out:
        Where run folders go: by default `runs`; with `append`, none are kept.
    append:
        A .jsonl file that gets a line for each run; those that it holds are skipped.
    time_limit:
        Seconds. Only what is expected to end in time is started; what still runs then is stopped.
    dry_run:
        Runs nothing, and returns how far all runs are and how long they are expected to take.
    jobs:
        How many runs at a time; `auto`: as many as pay.
    fail_fast:
        The first run that fails ends the sweep.
    device, data_root:
        Where to compute, and where datasets lie.
    checkpoint:
        Steps between checkpoints; `auto`: ten seconds; None: no checkpoint.
    anyway:
        Runs of other versions of onepass or torch go on, too.
    imports:
        Modules that register what the file asks for.
    listener:
        Is told how the sweep goes on.

    >>> runs = sweep({"defaults": {"methods": ["er", "gsa"], "seeds": 2}}, dry_run=True)
    >>> [run.name for run in runs]
    ['er-digits-m100-s0', 'gsa-digits-m100-s0', 'er-digits-m100-s1', 'gsa-digits-m100-s1']
    """
    until = math.inf if time_limit is None else time.monotonic() + _seconds(time_limit)
    planned = sweep_file.read_sweep_file(
        Path(file) if isinstance(file, str) else file,
        device=str(devices.resolve_device(device)),
        data_root=str(data_root) if data_root else None,
        imports=imports,
    )
    planned = _on_datasets([dataset] if isinstance(dataset, str) else dataset, planned, file)
    lines_file = None if append is None else Path(append)
    with _folder(out, lines_file) as folder:
        return complete_runs(
            planned,
            RunOptions(folder, True, checkpoint, anyway),
            append=lines_file,
            kept=append is None or out is not None,
            until=until,
            dry_run=dry_run,
            jobs=jobs,
            fail_fast=fail_fast,
            listener=listener,
        )


def complete_runs(
    planned: Sequence[PlannedRun],
    options: RunOptions,
    *,
    append: Path | None = None,
    kept: bool = True,
    until: float = math.inf,
    dry_run: bool = False,
    jobs: AtOnce = 1,
    fail_fast: bool = False,
    listener: SweepListener | None = None,
) -> list[SweptRun]:
    """Does what is not done yet of runs that are planned, until some time (of `time.monotonic`).
    Returns them, each once; `kept`: their folders are not temporary."""
    planned = sweep_file.without_repeats(_with_fingerprints(planned, all_data=append is not None))
    if any(run.job.deterministic for run in planned):
        devices.allow_determinism()
    if append is not None:
        lines.expect_lines_name(append)
    held = lines.read_results(append) if append is not None and append.exists() else []
    surveyed = runner.survey(planned, options.out, held)
    durations = Durations([*held, *(run.result for run in surveyed if run.result)])
    if dry_run:
        return [_forecast(run, durations) for run in surveyed]
    executor = executors.choose_executor([run.job for run in planned], jobs, isolated=True)
    listener = listener or SweepListener()
    for text in notices(surveyed, kept=kept):
        listener.noted(text)
    account = _SweepRecord(surveyed, options.out, append, listener)
    todo = account.begin(surveyed, {result.identity for result in held})
    if until == math.inf:  # else only few of them may ever start
        runner.validate_runs([planned[number] for number in todo], executor)
    make_folder(options.out)  # if it cannot be, no run can, and that is said once
    listener.started(account.runs)
    _execute(todo, account, options, executor, durations, until, fail_fast)
    return account.runs


def _execute(
    todo: Sequence[int],
    account: _SweepRecord,
    options: RunOptions,
    executor: Executor,
    durations: Durations,
    until: float,
    fail_fast: bool,
) -> None:
    """Runs what is to be done, by the numbers of the runs, and keeps account of it."""

    def watch(place: int, progress: Progress) -> None:
        account.listener.progressed(todo[place], progress)

    planned = [account.planned[number] for number in todo]
    with closing(
        runner.execute_runs(planned, options, executor, durations, watch, until=until)
    ) as endings:
        for ended in endings:
            account.end(todo[ended.number], ended)
            if fail_fast and isinstance(ended.outcome, Exception):
                break
    for place, number in enumerate(todo):  # what ended in the moment in which all was stopped
        if account.runs[number].state == "left":
            job = planned[place].job
            if result := finished_result(RunFolder.of(job, options.out), job):
                account.end(number, EndedRun(place, result))


class _SweepRecord:
    """Keeps what has become of each run, by its number, tells the listener, and adds lines."""

    def __init__(
        self,
        surveyed: Sequence[SurveyedRun],
        out: Path,
        append: Path | None,
        listener: SweepListener,
    ) -> None:
        self.planned = [run.planned for run in surveyed]
        self.out, self.append, self.listener = out, append, listener
        self.runs = [SweptRun(run.job, run.priority + 1, "left") for run in self.planned]

    def begin(self, surveyed: Sequence[SurveyedRun], held: Collection[str]) -> list[int]:
        """Returns the numbers of the runs that are not finished. Of those that are, each becomes a
        line if the file does not hold it; damaged folders are moved out of the way."""
        todo = []
        for number, found in enumerate(surveyed):
            if found.result is not None:
                run = replace(self.runs[number], state="skipped", result=found.result)
                self.runs[number] = run
                if found.result.identity not in held:
                    self._keep(found.result)
                continue
            if found.state == "damaged" and (moved := set_aside_if_damaged(found.folder)):
                problem, aside = moved
                self.listener.noted(f"{problem}; moved to {aside.name}, and run again")
            todo.append(number)
        return todo

    def end(self, number: int, ended: EndedRun) -> None:
        """A run has ended."""
        run, outcome = self.runs[number], ended.outcome
        if isinstance(outcome, Exception):
            run = replace(run, state="failed", problem=self._told(run.job, outcome))
        else:
            state: Literal["skipped", "finished"] = "skipped" if ended.elsewhere else "finished"
            run = replace(run, state=state, result=outcome)
            self._keep(outcome)
        self.runs[number] = run
        self.listener.ended(number, run)

    def _keep(self, result: Result) -> None:
        """Adds a line, if that is wanted, and once, whoever else appends to the file."""
        if self.append is not None:
            lines.append_result(self.append, result, once=True)

    def _told(self, job: Job, problem: Exception) -> str:
        """Returns what went wrong in which run, and where there is more about it."""
        log_file = RunFolder.of(job, self.out).log_file
        told = f"{problem}; see {log_file}" if log_file.exists() else str(problem)
        return told if job.folder_name in told else f"{job.folder_name}: {told}"


def _forecast(found: SurveyedRun, durations: Durations) -> SweptRun:
    seconds = None if found.result else durations.expected(found.job)
    priority = found.planned.priority + 1
    return SweptRun(found.job, priority, found.state, found.result, expected_seconds=seconds)


def _on_datasets(
    datasets: Sequence[str], planned: Sequence[PlannedRun], file: Path | str | Mapping[str, Any]
) -> list[PlannedRun]:
    """Returns the runs on these datasets, or all: not every machine has the files of every one."""
    names = {run.job.dataset for run in planned}
    for name in datasets:
        if name not in names:
            where = sweep_file.WITHOUT_FILE if isinstance(file, Mapping) else file
            raise UnknownNameError(f"dataset of {where}", name, names)
    return [run for run in planned if not datasets or run.job.dataset in datasets]


def _with_fingerprints(planned: Sequence[PlannedRun], *, all_data: bool) -> list[PlannedRun]:
    """Returns the runs with the fingerprints of their data. To find a run among lines there is no
    way without; run folders of datasets that have a name are found without, and their data may be
    gone."""
    from onepass.runs.resources import RunResources

    resources = RunResources()

    def with_fingerprint(job: Job) -> Job:
        try:
            return resources.with_fingerprint(job)
        except DataError:
            if all_data or job.has_own_data:
                raise
            return job

    return [replace(run, job=with_fingerprint(run.job)) for run in planned]


@contextmanager
def _folder(out: Path | str | None, append: Path | None) -> Iterator[Path]:
    """Yields where run folders go: who wants lines only has them for as long as they take."""
    if out is None and append is not None:
        with tempfile.TemporaryDirectory(prefix="onepass-") as folder:
            yield Path(folder)
    else:
        yield OUT if out is None else Path(out)


def _seconds(time_limit: float) -> float:
    expect_type("time_limit", time_limit, float)
    if not time_limit > 0:
        raise InputError(f"time_limit must be seconds above 0, not {time_limit!r}")
    return time_limit
