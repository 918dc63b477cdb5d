"""Scores a learner on the test samples of the classes seen so far: on the test set of a stream, or
on a test set of the user's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from onepass.base import inputs
from onepass.base.errors import InputError
from onepass.data.iterables import Test, repeatable_batches, xy_pairs
from onepass.learning.learner import Learner
from onepass.streams import Stream


def expect_untrained_scores(learner: Learner | type[Learner]) -> None:
    """Raises an InputError if the method trains before it is scored: prequential scoring would
    train it anew for each batch."""
    if learner.traits.trains_to_score:
        raise InputError(
            f"{learner.key!r} trains whenever it is scored, which prequential scoring would do "
            "before each batch: leave prequential out, and use `every` to score it now and then"
        )


def first_scorable_step(stream: Stream) -> int:
    """Returns the number of batches after which a learner can first be scored: with the last of
    them comes the first class that has test samples."""
    tested = set(stream.dataset.test_y.tolist())
    steps = range(len(stream))
    return 1 + next((at for at in steps if tested.intersection(stream.batch(at)[1].tolist())), 0)


class Scores(NamedTuple):
    """Counts of correct predictions and of test samples, as `Point` holds them. `confusion` is
    empty except at a task boundary of a stream."""

    correct: tuple[int, ...]
    total: tuple[int, ...]
    confusion: tuple[tuple[int, ...], ...] = ()


class StreamTestSet:
    """The test samples of a stream, sorted by class, so that each scoring takes only the classes
    seen so far. A run makes one, and scores with it again and again."""

    def __init__(self, stream: Stream) -> None:
        y = stream.dataset.test_y
        self.samples = [
            stream.dataset.test_x[y == label] for label in range(stream.dataset.classes)
        ]
        stream.check_scorable()
        self.task_of = torch.full((stream.dataset.classes,), -1)
        # A class may come in several tasks: in reverse, the first of them is written last.
        for task, group in reversed(list(enumerate(stream.tasks))):
            self.task_of[list(group)] = task

    def score(self, learner: Learner, *, boundary: bool) -> Scores:
        """Returns the scores per class of the dataset, with a confusion matrix at a boundary."""
        seen, labels = set(learner.classes), range(len(self.samples))
        tested = [label for label in labels if label in seen and len(self.samples[label])]
        truth = torch.cat([torch.full((len(self.samples[label]),), label) for label in tested])
        answers = learner.predict(torch.cat([self.samples[label] for label in tested]))
        predicted = torch.as_tensor(answers).cpu()
        correct = _count(truth[predicted == truth], len(self.samples))
        total = _count(truth, len(self.samples))
        return Scores(correct, total, self._confusion(truth, predicted) if boundary else ())

    def _confusion(self, truth: Tensor, predicted: Tensor) -> tuple[tuple[int, ...], ...]:
        # The learner may also predict labels that this stream does not have, and a custom stream
        # may leave classes out of every task. Both have task -1 and are not counted.
        valid = (predicted >= 0) & (predicted < len(self.task_of))
        rows = self.task_of[truth]
        columns = self.task_of[predicted.where(valid, 0)].where(valid, -1)
        tasks = int(torch.maximum(rows, columns).max()) + 1
        in_tasks = (rows >= 0) & (columns >= 0)
        rows, columns = rows[in_tasks], columns[in_tasks]
        counts = torch.bincount(rows * tasks + columns, minlength=tasks * tasks)
        return tuple(map(tuple, counts.view(tasks, tasks).tolist()))


class UserTestSet:
    """The test set that the user gives, iterated once for each scoring. Samples of classes that the
    learner has not seen are left out."""

    def __init__(self, test: Test) -> None:
        self.batches = repeatable_batches(test)

    def score(self, learner: Learner, *, boundary: bool) -> Scores:
        """Returns the scores per class of `learner.classes`, without a confusion matrix, because
        the tasks of the classes are unknown."""
        classes = len(learner.classes)
        correct, total = torch.zeros(2, classes, dtype=torch.int64)
        for x, y in xy_pairs(self.batches):
            samples = learner.sampler(x)
            truth = rows_of(learner, y, len(samples))
            known = truth >= 0
            if bool(known.any()):
                truth = truth[known]
                hit = predicted_rows(learner, samples[known]) == truth
                total += torch.bincount(truth, minlength=classes)
                correct += torch.bincount(truth[hit], minlength=classes)
        return Scores(tuple(correct.tolist()), tuple(total.tolist()))


def rows_of(learner: Learner, y: Any, count: int) -> Tensor:
    """Returns the index of each label in `learner.classes`; -1 for an unseen label."""
    row_of = {label: row for row, label in enumerate(learner.classes)}
    return torch.tensor([row_of.get(label, -1) for label in inputs.as_labels(y, count)])


def predicted_rows(learner: Learner, samples: Tensor) -> Tensor:
    """Returns the index of each sample's predicted class in `learner.classes`, on the CPU."""
    return learner.scores(samples).argmax(dim=1).cpu()


def _count(labels: Tensor, classes: int) -> tuple[int, ...]:
    return tuple(torch.bincount(labels, minlength=classes).tolist())
