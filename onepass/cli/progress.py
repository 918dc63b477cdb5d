"""Progress on standard error: bars in a terminal, elsewhere lines.

`onepass run` has a bar for each run. A sweep has one for all runs and one for each that is running.
`onepass tune` makes its own with `progress_bars`. Outside of a terminal the bars are printed once,
at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
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

from onepass.base import news
from onepass.base.news import Line
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


class Lines:
    """Prints the lines that runs tell. Each note is printed once, whichever run tells it first. In
    a terminal the lines about steps are left out, because bars show the same.

    A run paces its own lines. Those of `many` runs are thinned out here: to one in five seconds,
    and in a thirtieth of the time so far."""

    def __init__(self, *, many: bool) -> None:
        self.many = many
        self.began = self.printed = time.monotonic()
        self.notes: set[str] = set()

    def show(self, name: str, line: Line) -> None:
        """Prints a line of the run of this name, if it is due."""
        if line.kind == "note":
            if line.text in self.notes:
                return
            self.notes.add(line.text)
        elif (line.kind == "steps" and bars_are_seen()) or (self.many and not self._is_due()):
            return
        print_line(f"{name}: {line.text}")

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self.printed < news.PAUSE * max(1 / 2, (now - self.began) / 300):
            return False
        self.printed = now
        return True


def bars_are_seen() -> bool:
    """Returns whether standard error is a terminal that can show moving bars."""
    return messages.is_terminal and not messages.is_dumb_terminal


def print_line(text: str) -> None:
    """Prints a line of progress on standard error. If that fails, the work goes on."""
    if bars_are_seen():
        messages.print(printable(text))  # above the bars
        return
    with suppress(OSError):  # rich would end the process when the reader of a pipe has gone
        print(printable(text), file=sys.stderr, flush=True)


class JobBars:
    """A bar for each of several jobs, whether they run in this process or in others."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.display, self.lines = progress_bars(), Lines(many=len(jobs) > 1)
        self.names = [f"{job.method} seed {job.seed}" for job in jobs]
        self.bar_of = [
            self.display.add_task(name, total=None, note="", visible=False) for name in self.names
        ]

    def __enter__(self) -> Self:
        self.display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.display.stop()

    def watch(self, index: int, now: callbacks.Progress) -> None:
        """Moves the bar of the job with this index, and shows its latest accuracy and line."""
        if now.line:
            self.lines.show(self.names[index], now.line)
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
        self.ended = self.failed = 0
        self.display, self.lines = progress_bars(), Lines(many=True)
        self.bar_of: dict[int, TaskID] = {}

    def start(self, names: Sequence[str], done: int) -> None:
        """Shows the bar of all runs; `done` runs had finished before."""
        self.names, self.ended = [printable(name) for name in names], done
        self.all = self.display.add_task("all runs", total=len(names), completed=done, note="")
        self.display.start()

    def stop(self) -> None:
        for index in list(self.bar_of):
            self._remove(index)
        self.display.stop()

    def watch(self, index: int, now: callbacks.Progress) -> None:
        """Moves the bar of the run with this index, and shows its line; the first call makes the
        bar."""
        name = self.names[index]
        if now.line:
            self.lines.show(name, now.line)
        if index not in self.bar_of:
            self.bar_of[index] = self.display.add_task(name, total=now.steps, note="")
        note = "" if now.accuracy is None else f"task {now.task + 1}: {now.accuracy:.1f} %"
        self.display.update(self.bar_of[index], completed=now.step, note=note)

    def end(self, index: int, *, failed: bool) -> None:
        """Removes the bar of a run that has ended, and counts it in the bar of all runs."""
        self._remove(index)
        self.ended += 1
        self.failed += failed
        note = f"{self.failed} failed" if self.failed else ""
        self.display.update(self.all, advance=1, note=note)
        ended = [f"{self.ended} of {len(self.names)} ended", note]
        self.lines.show("all runs", Line(", ".join(filter(None, ended)), "steps"))

    def _remove(self, index: int) -> None:
        if index in self.bar_of:
            self.display.remove_task(self.bar_of.pop(index))
