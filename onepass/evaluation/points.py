"""Ticks and points: plain records of a run after a batch, without and with scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepass.base.text import html_table
from onepass.evaluation.metrics import percent


@dataclass(frozen=True)
class Tick:
    """The state of a run after one batch.

    `step` counts learned batches; `task` is the task of the batch, counted from 0. `seconds` is
    training time, without the time for `scoring` and for the `capture` of steps as CUDA graphs.
    All three are in seconds since the start of the run. With prequential scoring, `hits` of `tried`
    samples were predicted correctly before they were learned.
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
    """An evaluation point: a tick at which the learner was scored on the test samples of the
    classes seen so far.

    `correct` and `total` count correct predictions and test samples, per class of the dataset; an
    unseen class has a total of 0. For an iterable of batches the counts are per class of
    `learner.classes`, because the classes are not known in advance. `loss` is the loss of the last
    step. `boundary` is whether a task of a `Stream` has just ended. At a boundary, `confusion`
    counts test samples by their task (rows) and the task of the predicted class (columns).
    """

    boundary: bool = False
    loss: float = math.nan
    correct: tuple[int, ...] = ()
    total: tuple[int, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self._facts.items())
        return f"<Point {facts}>"

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
        """Accuracy in percent on the test samples of the classes seen so far; NaN if there are
        none."""
        return percent(sum(self.correct), sum(self.total)) if any(self.total) else math.nan

    @property
    def prequential(self) -> float | None:
        """The accuracy in percent on each batch before it is learned; None without prequential
        scoring."""
        return percent(self.hits, self.tried) if self.tried else None
