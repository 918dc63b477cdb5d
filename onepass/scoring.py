"""What is measured while a stream is learned: ticks, points, and the test set behind them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from onepass.errors import InputError
from onepass.learner import Learner
from onepass.metrics import percent
from onepass.streams import Stream
from onepass.words import as_html


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

    `correct` and `total` are per class of the dataset; a class not yet seen has a total of 0.
    `boundary` says whether a task has just ended.
    """

    boundary: bool = False
    loss: float = math.nan
    correct: tuple[int, ...] = ()
    total: tuple[int, ...] = ()

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self._facts.items())
        return f"<Point {told}>"

    def _repr_html_(self) -> str:
        return as_html("Point", self._facts)

    @property
    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "step": self.step,
            "task": self.task,
            "classes": sum(n > 0 for n in self.total),
        }
        return {**facts, "accuracy": f"{self.accuracy:.1f}"} if sum(self.total) else facts

    @property
    def accuracy(self) -> float:
        """Percent of the test images of the classes seen so far."""
        return percent(sum(self.correct), sum(self.total))

    @property
    def prequential(self) -> float | None:
        return percent(self.hits, self.tried) if self.tried else None


def check_scorable(stream: Stream) -> None:
    """There must be something to score after each task."""
    tested = set(stream.dataset.test_y.tolist())
    for task, group in enumerate(stream.tasks):
        if not tested.intersection(group):
            raise InputError(f"there are no test samples of task {task + 1}, classes {group}")


class TestSet:
    """The test samples sorted by class, so that the classes seen so far are scored and no others.

    It is made once and scored many times.
    """

    __test__ = False  # pytest takes the name for a test

    def __init__(self, stream: Stream) -> None:
        y = stream.dataset.test_y
        self.samples = [
            stream.dataset.test_x[y == label] for label in range(stream.dataset.classes)
        ]
        check_scorable(stream)

    def score(self, learner: Learner) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Correct predictions and test samples, per class."""
        known, there = set(learner.classes), range(len(self.samples))
        tested = [label for label in there if label in known and len(self.samples[label])]
        truth = torch.cat([torch.full((len(self.samples[label]),), label) for label in tested])
        predicted = learner.predict(torch.cat([self.samples[label] for label in tested]))
        hit = truth[torch.as_tensor(predicted).cpu() == truth]
        return _count(hit, len(self.samples)), _count(truth, len(self.samples))


def _count(labels: Tensor, classes: int) -> tuple[int, ...]:
    return tuple(torch.bincount(labels, minlength=classes).tolist())
