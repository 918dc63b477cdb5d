"""The progress bars, on standard error: one for each run; of many runs, one for all and one for
each that is running."""

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
    """Bars with a note behind each. In a narrow terminal bars become short, and words are wrapped;
    no number is cut."""
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(overflow="fold")),
    )
    return Progress(*columns, console=messages)


class JobBars:
    """Shows how far each of several jobs is, wherever it runs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.shown = progress_bars()
        self.bar_of = [
            self.shown.add_task(f"{job.method} seed {job.seed}", total=None, note="", visible=False)
            for job in jobs
        ]

    def __enter__(self) -> Self:
        self.shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shown.stop()

    def watch(self, index: int, now: callbacks.Progress) -> None:
        if now.accuracy is not None:
            note = f"task {now.task + 1}: {now.accuracy:.1f} %"
            self.shown.update(self.bar_of[index], note=note)
        bar = self.bar_of[index]
        self.shown.update(bar, completed=now.step, total=now.steps, visible=True)

    def fill(self, index: int, result: Result) -> None:
        """A run has ended."""
        steps, note = result.steps, f"{result.accuracy:.1f} %"
        bar = self.bar_of[index]
        self.shown.update(bar, total=steps, completed=steps, note=note, visible=True)

    def fail(self, index: int, problem: Exception) -> None:
        """A run has failed for good; why is told at the end."""
        self.shown.update(self.bar_of[index], note="failed")


class SweepBars:
    """A bar for all runs of a sweep, and one for each that is running."""

    def __init__(self) -> None:
        self.failed = 0
        self.shown = progress_bars()
        self.bar_of: dict[int, TaskID] = {}

    def start(self, names: Sequence[str], done: int) -> None:
        self.names = names
        self.all = self.shown.add_task("all runs", total=len(names), completed=done, note="")
        self.shown.start()

    def stop(self) -> None:
        for index in list(self.bar_of):
            self._remove(index)
        self.shown.stop()

    def watch(self, index: int, now: callbacks.Progress) -> None:
        if index not in self.bar_of:
            name = printable(self.names[index])
            self.bar_of[index] = self.shown.add_task(name, total=now.steps, note="")
        note = "" if now.accuracy is None else f"task {now.task + 1}: {now.accuracy:.1f} %"
        self.shown.update(self.bar_of[index], completed=now.step, note=note)

    def end(self, index: int, *, failed: bool) -> None:
        self._remove(index)
        self.failed += failed
        note = f"{self.failed} failed" if self.failed else ""
        self.shown.update(self.all, advance=1, note=note)

    def _remove(self, index: int) -> None:
        if index in self.bar_of:
            self.shown.remove_task(self.bar_of.pop(index))
