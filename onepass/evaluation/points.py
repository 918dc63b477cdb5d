"""Ticks and points record, as plain data, how a stream is learned."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepass.base.text import html_table
from onepass.evaluation.metrics import percent


@dataclass(frozen=True)
class Tick:
    """After one batch: how many batches have been learned, in which task, how long training took so
    far, and, with prequential scoring, how many samples were predicted rightly before they were
    learned.

    Training is timed apart from scoring and from the capture of steps.
    """

    step: int
    task: int
    seconds: float
    hits: int = 0
    tried: int = 0
    scoring: float = 0.0
    capture: float = 0.0


BEGINNING = Tick(step=0, task=0, seconds=0.0)


@dataclass(frozen=True)
class Point(Tick):
    """A tick at which the learner was scored on the test images of the classes seen so far.

    `correct` and `total` are per class of the dataset, where a class not yet seen has a total of 0;
    of batches of the user's own, whose classes nobody knows ahead, per class of `learner.classes`.
    `boundary` says whether a task has just ended; then `confusion` counts test samples of each task
    so far (rows) by the task of the class that was predicted (columns).
    """

    boundary: bool = False
    loss: float = math.nan
    correct: tuple[int, ...] = ()
    total: tuple[int, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self._facts.items())
        return f"<Point {told}>"

    def _repr_html_(self) -> str:
        return html_table("Point", self._facts)

    @property
    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"step": self.step, "task": self.task}
        if any(self.total):
            facts["classes"] = sum(n > 0 for n in self.total)
            facts["accuracy"] = f"{self.accuracy:.1f}"
        if self.prequential is not None:
            facts["prequential"] = f"{self.prequential:.1f}"
        return facts

    @property
    def accuracy(self) -> float:
        """Percent of the test images of the classes seen so far; NaN if there are none."""
        return percent(sum(self.correct), sum(self.total)) if any(self.total) else math.nan

    @property
    def prequential(self) -> float | None:
        return percent(self.hits, self.tried) if self.tried else None
