"""The progress bars: one for each run, on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from onepass import listeners
from onepass.cli.base import messages
from onepass.job import Job
from onepass.result import Result


class Bars:
    """Shows how far each of several jobs is, wherever it runs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self.shown = Progress(*columns, console=messages)
        self.bar_of = [
            self.shown.add_task(f"{job.method} seed {job.seed}", total=None, note="", visible=False)
            for job in jobs
        ]

    def __enter__(self) -> Self:
        self.shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shown.stop()

    def watch(self, index: int, now: listeners.Progress) -> None:
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
