"""`onepass sweep`: carries out all runs of a TOML file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from onepass.base.errors import InputError
from onepass.base.text import format_duration, printable, quoted
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import Imports, app, messages, print_text
from onepass.cli.progress import SweepBars, print_line
from onepass.cli.run import parse_checkpoint, parse_jobs_at_once
from onepass.runs.spec import Job
from onepass.runs.variant import PRESET, Variant
from onepass.sweeps import run
from onepass.sweeps.run import SweepListener, SweptRun

if TYPE_CHECKING:
    from onepass.evaluation.callbacks import Progress

DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", re.ASCII)
UNITS = {"s": 1, "m": 60, "h": 3600}


@app.command(
    name="sweep",
    epilog="""\b
Examples:
  onepass sweep experiments/digits.toml --out runs/ --dry-run
  onepass sweep experiments/digits.toml --out runs/ --jobs auto
  onepass sweep experiments/table1.toml --out runs/ --jobs auto --fail-fast
  onepass sweep experiments/table1.toml --for 20m --append results/lines/table1.jsonl
  onepass sweep experiments/table1.toml --dataset cifar100 --out runs/

If it is stopped, give the same command again: it continues. docs/sweeps.md explains the file.""",
)
def sweep_command(
    file: Annotated[Path, typer.Argument(help="TOML file that lists the runs.")],
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="Only the runs on this dataset; repeatable.",
            autocompletion=shared.complete_datasets,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run folders (default: runs; with --append, none)."),
    ] = None,
    append: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Append each result as a line; skip runs whose line is already there.",
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="Start only runs expected to end within this time: 90s, 20m, 2h.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only list the runs, their state and expected duration."),
    ] = False,
    jobs: shared.Jobs = "1",
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop all runs when the first one fails.")
    ] = False,
    device: shared.Device = Job.device,
    data_root: shared.DataRoot = None,
    checkpoint: shared.Checkpoint = "auto",
    anyway: shared.Anyway = False,
    imports: Imports = None,
    columns: shared.Columns = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per run, nothing else.")
    ] = False,
) -> None:
    """Carry out all runs of a file that are not finished yet."""
    temporary = out is None and append is not None
    anew = "starts them anew (--out keeps unfinished runs)"
    with SweepDisplay(
        "" if temporary else f"; in {out or run.OUT}",
        goes_on=anew if temporary else "continues",
        as_json=as_json,
    ) as shown:
        runs = run.sweep(
            file,
            dataset=dataset or (),
            out=out,
            append=append,
            time_limit=None if time_limit is None else _parse_duration(time_limit),
            dry_run=dry_run,
            jobs=parse_jobs_at_once(jobs),
            fail_fast=fail_fast,
            device=device,
            data_root=data_root,
            checkpoint=parse_checkpoint(checkpoint),
            anyway=anyway,
            imports=imports or (),
            listener=shown,
        )
    if dry_run:
        _print_plan(runs, as_json, columns)
    elif any(swept.state == "failed" for swept in runs):
        raise typer.Exit(1)


class SweepDisplay(SweepListener):
    """Shows the progress of a sweep as bars.

    At the end, also after an error or Ctrl-C, it prints the failures and how many runs are
    finished, skipped, failed and left. `goes_on` is what the same command does with those left.
    `where` is the end of that summary.
    """

    def __init__(self, where: str, *, goes_on: str = "continues", as_json: bool = False) -> None:
        self.where, self.goes_on, self.as_json = where, goes_on, as_json
        self.runs: list[SweptRun] = []
        self.bars = SweepBars()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()
        if self.runs:
            self._print_summary()

    def started(self, runs: Sequence[SweptRun]) -> None:
        self.runs = list(runs)
        presets = Counter(swept.job.preset for swept in runs)
        counts = ", ".join(f"{preset} ({count} runs)" for preset, count in presets.items())
        print_line(f"preset {counts}")
        done = sum(swept.state == "skipped" for swept in runs)
        self.bars.start([swept.name for swept in runs], done)

    def progressed(self, number: int, progress: Progress) -> None:
        self.bars.watch(number, progress)

    def ended(self, number: int, run: SweptRun) -> None:
        self.runs[number] = run
        if run.result is not None and self.as_json:
            typer.echo(json.dumps(run.result.printed()))
        self.bars.end(number, failed=run.state == "failed")

    def noted(self, text: str) -> None:
        messages.print(printable(text))

    def _print_summary(self) -> None:
        for swept in self.runs:
            if swept.problem:
                messages.print(printable(f"failed: {swept.problem}"))
        counts = Counter(swept.state for swept in self.runs)
        summary = [f"{counts[word]} {word}" for word in ("finished", "skipped", "failed")]
        left = counts["left"]
        summary += [f"{left} left: the same command {self.goes_on}"] if left else []
        messages.print(printable(f"{', '.join(summary)}{self.where}"))


# ---- --dry-run


def _print_plan(runs: Sequence[SweptRun], as_json: bool, columns: str | None) -> None:
    """Prints the runs with their states and expected durations, then how many are in each state
    and the sum of the durations."""
    rows = [
        {
            "run": swept.name,
            "variant": str(swept.job.variant),
            "priority": swept.priority,
            "state": swept.state,
        }
        for swept in runs
    ]
    expected = [swept.expected_seconds for swept in runs]
    if as_json:
        for row, seconds in zip(rows, expected, strict=True):
            typer.echo(json.dumps({**row, "expected_seconds": seconds}))
        return
    times = ["" if seconds is None else format_duration(seconds) for seconds in expected]
    named = [str(Variant({PRESET: swept.job.preset, **swept.job.variant})) for swept in runs]
    timed = [
        {**row, "variant": variant, "expected": time}
        for row, variant, time in zip(rows, named, times, strict=True)
    ]
    terminal_table.print_rows(timed, columns)
    counts = Counter(swept.state for swept in runs)
    print_text(", ".join(f"{count} {state}" for state, count in counts.items()))
    # finished runs have no expected duration, but need none
    unknown = sum(count for state, count in counts.items() if state != "finished")
    unknown -= sum(seconds is not None for seconds in expected)
    known = f"{format_duration(sum(seconds or 0 for seconds in expected))} one after another"
    more = f"{unknown} of unknown duration"
    measured = any(expected) or not unknown
    print_text(f"expected: {', and '.join([known] * measured + [more] * bool(unknown))}")


def _parse_duration(text: str) -> float:
    """Returns the seconds of a duration; raises InputError if it is malformed or zero.

    >>> _parse_duration("90s"), _parse_duration("20m"), _parse_duration("1.5h")
    (90.0, 1200.0, 5400.0)
    """
    found = DURATION.fullmatch(text)
    if not found or float(found[1]) == 0:
        raise InputError(f"--for takes a time such as 90s, 20m or 2h, not {quoted(text)}")
    return float(found[1]) * UNITS[found[2]]
