"""Scoring: the test samples of the classes seen so far, as a whole test set or in batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from onepass.base import inputs
from onepass.base.errors import InputError
from onepass.data.iterables import Test, test_batches, xy_pairs
from onepass.learning.learner import Learner
from onepass.streams import Stream


def expect_untrained_scores(learner: Learner | type[Learner]) -> None:
    """Raises an InputError for a method that would train anew before each batch."""
    if learner.traits.trains_to_score:
        raise InputError(
            f"{learner.key!r} trains whenever it is scored, and prequential scores are asked for "
            "before each batch: leave prequential out; `every` scores it now and then"
        )


def first_scorable_step(stream: Stream) -> int:
    """After how many batches there is something to score."""
    tested = set(stream.dataset.test_y.tolist())
    steps = range(len(stream))
    return 1 + next((at for at in steps if tested.intersection(stream.batch(at)[1].tolist())), 0)


class Scores(NamedTuple):
    """Correct predictions and test samples, per class; and `Point.confusion`, at the boundaries of
    tasks that are known ahead."""

    correct: tuple[int, ...]
    total: tuple[int, ...]
    confusion: tuple[tuple[int, ...], ...] = ()


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
        stream.check_scorable()
        self.task_of = torch.full((stream.dataset.classes,), -1)
        for task, group in reversed(list(enumerate(stream.tasks))):  # the first that has a class
            self.task_of[list(group)] = task

    def score(self, learner: Learner, *, boundary: bool) -> Scores:
        known, there = set(learner.classes), range(len(self.samples))
        tested = [label for label in there if label in known and len(self.samples[label])]
        truth = torch.cat([torch.full((len(self.samples[label]),), label) for label in tested])
        found = learner.predict(torch.cat([self.samples[label] for label in tested]))
        predicted = torch.as_tensor(found).cpu()
        correct = _count(truth[predicted == truth], len(self.samples))
        total = _count(truth, len(self.samples))
        return Scores(correct, total, self._confusion(truth, predicted) if boundary else ())

    def _confusion(self, truth: Tensor, predicted: Tensor) -> tuple[tuple[int, ...], ...]:
        ours = (predicted >= 0) & (predicted < len(self.task_of))  # it may know other labels too
        rows = self.task_of[truth]
        columns = self.task_of[predicted.where(ours, 0)].where(ours, -1)
        tasks = int(torch.maximum(rows, columns).max()) + 1
        in_tasks = (rows >= 0) & (columns >= 0)  # a stream of the user's may leave classes out
        rows, columns = rows[in_tasks], columns[in_tasks]
        counts = torch.bincount(rows * tasks + columns, minlength=tasks * tasks)
        return tuple(map(tuple, counts.view(tasks, tasks).tolist()))


class TestBatches:
    """Test samples as the user has them, walked once for each score."""

    __test__ = False

    def __init__(self, test: Test) -> None:
        self.batches = test_batches(test)

    def score(self, learner: Learner, *, boundary: bool) -> Scores:
        """Per class of `learner.classes`; nobody knows the tasks."""
        classes = len(learner.classes)
        correct, total = torch.zeros(2, classes, dtype=torch.int64)
        for x, y in xy_pairs(self.batches):
            samples = inputs.as_samples(x)
            truth = rows_of(learner, y, len(samples))
            known = truth >= 0
            if bool(known.any()):
                truth = truth[known]
                hit = predicted_rows(learner, samples[known]) == truth
                total += torch.bincount(truth, minlength=classes)
                correct += torch.bincount(truth[hit], minlength=classes)
        return Scores(tuple(correct.tolist()), tuple(total.tolist()))


def rows_of(learner: Learner, y: Any, count: int) -> Tensor:
    """The place of each label in `learner.classes`; -1 of one that it has not seen."""
    row_of, labels = learner.class_index.row_of, inputs.as_labels(y, count)
    return torch.tensor([row_of.get(label, -1) for label in labels])


def predicted_rows(learner: Learner, samples: Tensor) -> Tensor:
    return learner.scores(samples).argmax(dim=1).cpu()


def _count(labels: Tensor, classes: int) -> tuple[int, ...]:
    return tuple(torch.bincount(labels, minlength=classes).tolist())
