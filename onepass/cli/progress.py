"""Progress bars on standard error.

`onepass run` has a bar for each run. A sweep has one for all runs and one for each that is running.
`onepass tune` makes its own with `progress_bars`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from onepass.base.text import printable
from onepass.cli.app import messages
from onepass.evaluation import callbacks
from onepass.runs.result import Result
from onepass.runs.spec import Job


def progress_bars() -> Progress:
    """Returns an empty display of bars, each with a note behind it.

    In a narrow terminal the bars become shorter and words wrap, but no number is cut.
    """
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(overflow="fold")),
    )
    return Progress(*columns, console=messages)


class JobBars:
    """A bar for each of several jobs, whether they run in this process or in others."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.display = progress_bars()
        self.bar_of = [
            self.display.add_task(
                f"{job.method} seed {job.seed}", total=None, note="", visible=False
            )
            for job in jobs
        ]

    def __enter__(self) -> Self:
        self.display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.display.stop()

    def watch(self, index: int, now: callbacks.Progress) -> None:
        """Moves the bar of the job with this index, and shows its latest accuracy."""
        if now.accuracy is not None:
            note = f"task {now.task + 1}: {now.accuracy:.1f} %"
            self.display.update(self.bar_of[index], note=note)
        bar = self.bar_of[index]
        self.display.update(bar, completed=now.step, total=now.steps, visible=True)

    def fill(self, index: int, result: Result) -> None:
        """Completes the bar of a run that has finished."""
        steps, note = result.steps, f"{result.accuracy:.1f} %"
        bar = self.bar_of[index]
        self.display.update(bar, total=steps, completed=steps, note=note, visible=True)

    def fail(self, index: int, problem: Exception) -> None:
        """Marks a run that has failed for good; `execute_all` reports why at the end."""
        self.display.update(self.bar_of[index], note="failed")


class SweepBars:
    """One bar for all runs of a sweep, and one for each that is running."""

    def __init__(self) -> None:
        self.failed = 0
        self.display = progress_bars()
        self.bar_of: dict[int, TaskID] = {}

    def start(self, names: Sequence[str], done: int) -> None:
        """Shows the bar of all runs; `done` runs had finished before."""
        self.names = names
        self.all = self.display.add_task("all runs", total=len(names), completed=done, note="")
        self.display.start()

    def stop(self) -> None:
        for index in list(self.bar_of):
            self._remove(index)
        self.display.stop()

    def watch(self, index: int, now: callbacks.Progress) -> None:
        """Moves the bar of the run with this index; the first call makes it."""
        if index not in self.bar_of:
            name = printable(self.names[index])
            self.bar_of[index] = self.display.add_task(name, total=now.steps, note="")
        note = "" if now.accuracy is None else f"task {now.task + 1}: {now.accuracy:.1f} %"
        self.display.update(self.bar_of[index], completed=now.step, note=note)

    def end(self, index: int, *, failed: bool) -> None:
        """Removes the bar of a run that has ended, and counts it in the bar of all runs."""
        self._remove(index)
        self.failed += failed
        note = f"{self.failed} failed" if self.failed else ""
        self.display.update(self.all, advance=1, note=note)

    def _remove(self, index: int) -> None:
        if index in self.bar_of:
            self.display.remove_task(self.bar_of.pop(index))
