"""The only loop: learn a batch, and from time to time score the learner on the test set.

It is a generator; printing, recording and drawing are its customers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from onepass.errors import InputError, TrainingError
from onepass.learner import Learner
from onepass.metrics import percent
from onepass.streams import Stream


@dataclass(frozen=True)
class Tick:
    """After one batch: how many were learned, in which task, how long training took so far, and,
    with prequential scoring, how many samples were predicted rightly before they were learned.

    Training is timed apart from scoring and from the capture of steps.
    """

    step: int
    task: int
    seconds: float
    hits: int = 0
    tried: int = 0
    scoring: float = 0.0
    capture: float = 0.0


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

    @property
    def accuracy(self) -> float:
        """Percent of the test images of the classes seen so far."""
        return percent(sum(self.correct), sum(self.total))

    @property
    def prequential(self) -> float | None:
        return percent(self.hits, self.tried) if self.tried else None


def evaluate(
    learner: Learner,
    stream: Stream,
    *,
    every: int | None = None,
    prequential: bool = False,
) -> Iterator[Point]:
    """Learns the stream, yielding a point at the end of each task and after `every` batches. A
    method that trains when scores are asked for is scored at the end only, unless `every` is given.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> for point in onepass.evaluate(onepass.ER(memory=100, seed=0), stream):
    ...     print(point.task, point.step, len([n for n in point.total if n]))
    0 29 2
    1 58 4
    2 88 6
    3 117 8
    4 146 10
    """
    for tick in walk(learner, stream, every=every, prequential=prequential):
        if isinstance(tick, Point):
            yield tick


def walk(
    learner: Learner,
    stream: Stream,
    *,
    every: int | None = None,
    prequential: bool = False,
    start: Tick | None = None,
) -> Iterator[Tick]:
    """As `evaluate`, but yields after every batch, and can go on after the tick `start`."""
    before = start or Tick(step=0, task=0, seconds=0.0)
    if not isinstance(learner, Learner) or not isinstance(stream, Stream):
        given = f"a {type(learner).__name__} and a {type(stream).__name__}"
        raise InputError(f"evaluate takes a learner, then a stream; it was given {given}")
    if every is not None and every < 1:
        raise InputError(f"every must be at least 1, not {every}")
    if not learner.prepared:
        first, _ = stream.batch(0)
        learner.prepare(tuple(first.shape[1:]), first.dtype)
    stream = stream.on(learner.where)
    test = _Test(stream)
    at_task_ends = every is not None or not learner.trains_to_score
    clock = _Clock(before, learner)
    hits, tried = before.hits, before.tried
    for index in range(before.step, len(stream)):
        x, y = stream.batch(index)
        if prequential:
            with clock.scoring():
                hits += int((learner.predict(x).cpu() == y).sum()) if learner.steps else 0
            tried += len(y)
        done, task, boundary = index + 1, stream.task_of(index), stream.ends_task(index)
        due = boundary and (at_task_ends or done == len(stream))
        due = due or (every is not None and done % every == 0)
        with clock.training():
            if stream.boundaries and stream.starts_task(index):
                learner.new_task()
            step = learner.learn(x, y)
            if stream.boundaries and boundary:
                learner.end_task()
            if due or prequential:
                loss = float(step.loss)  # waits for the device, so that its time counts here
        if not due:
            yield Tick(done, task, hits=hits, tried=tried, **clock.read())
            continue
        if not math.isfinite(loss):
            raise TrainingError(f"the loss of {learner.key!r} is {loss} at step {done}")
        with clock.scoring():
            correct, total = test.score(learner)
        yield Point(
            done,
            task,
            hits=hits,
            tried=tried,
            boundary=boundary,
            loss=loss,
            correct=correct,
            total=total,
            **clock.read(),
        )


class _Clock:
    """What training, scoring and capturing have taken so far."""

    def __init__(self, before: Tick, learner: Learner) -> None:
        self.learner = learner
        self.taken = {"seconds": before.seconds, "scoring": before.scoring}
        self.captured = before.capture

    @contextmanager
    def training(self) -> Iterator[None]:
        began, captured = time.perf_counter(), self.learner.trainer.capture_seconds
        yield
        capture = self.learner.trainer.capture_seconds - captured
        self.captured += capture
        self.taken["seconds"] += time.perf_counter() - began - capture

    @contextmanager
    def scoring(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.taken["scoring"] += time.perf_counter() - began

    def read(self) -> dict[str, float]:
        return {**self.taken, "capture": self.captured}


def check_scorable(stream: Stream) -> None:
    """There must be something to score after each task."""
    tested = set(stream.dataset.test_y.tolist())
    for task, group in enumerate(stream.tasks):
        if not tested.intersection(group):
            raise InputError(f"there are no test samples of task {task + 1}, classes {group}")


class _Test:
    """The test set, sorted by class, so that the classes seen so far are scored and no others."""

    def __init__(self, stream: Stream) -> None:
        y = stream.dataset.test_y
        self.samples = [
            stream.dataset.test_x[y == label] for label in range(stream.dataset.classes)
        ]
        check_scorable(stream)

    def score(self, learner: Learner) -> tuple[tuple[int, ...], tuple[int, ...]]:
        known = (label for label in sorted(learner.classes) if label < len(self.samples))
        seen = [label for label in known if len(self.samples[label])]
        truth = torch.cat([torch.full((len(self.samples[label]),), label) for label in seen])
        predicted = learner.predict(torch.cat([self.samples[label] for label in seen])).cpu()
        hit = truth[predicted == truth]
        return _count(hit, len(self.samples)), _count(truth, len(self.samples))


def _count(labels: Tensor, classes: int) -> tuple[int, ...]:
    return tuple(torch.bincount(labels, minlength=classes).tolist())
