"""Metrics of continual learning, as pure functions of the accuracy matrix.

a[i][j] is the accuracy in percent on the test samples of task j after learning task i, counted from
0, with all classes seen so far competing. The matrix is lower triangular: None above the diagonal.
A whole row is None if the learner was not scored after that task. The examples use three tasks, and
the first two lose accuracy:

>>> a = [[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]]
"""

from __future__ import annotations

from collections.abc import Sequence

FEWEST_POINTS = 3  # a mean over fewer evaluation points says nothing about the course of a run
Matrix = Sequence[Sequence[float | None]]


def accuracy_matrix(
    correct: Sequence[Sequence[int] | None],
    total: Sequence[int],
    tasks: Sequence[Sequence[int]],
) -> list[list[float | None]]:
    """Returns the accuracy matrix. `correct` has the number of correct predictions per class after
    each task (None where the learner was not scored), `total` the number of test samples per class,
    `tasks` the classes of each task.

    >>> accuracy_matrix([[9, 8, 0], [6, 6, 10]], total=[10, 10, 20], tasks=[[0, 1], [2]])
    [[85.0, None], [60.0, 50.0]]
    """
    return [
        [
            percent(sum(row[c] for c in group), sum(total[c] for c in group))
            if row is not None and j <= i
            else None
            for j, group in enumerate(tasks)
        ]
        for i, row in enumerate(correct)
    ]


def percent(correct: int, total: int) -> float:
    return 100 * correct / total


def mean_task_accuracy(a: Matrix) -> float:
    """Returns the mean accuracy on the tasks after the last one: the mean of the last row. It
    equals the accuracy over all test samples if the tasks have equally many and share no class.

    >>> mean_task_accuracy([[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]])
    65.0
    """
    last = [value for value in a[-1] if value is not None]
    return sum(last) / len(last)


def _drops(a: Matrix) -> list[float] | None:
    """Returns how far the final accuracy on each task lies below the best one, in percentage
    points; None unless the learner was scored after every task."""
    if any(row[task] is None for task, row in enumerate(a)):
        return None
    last = a[-1]
    drops = []
    for task in range(len(a)):
        history = [row[task] for row in a if row[task] is not None]
        best, now = max(v for v in history if v is not None), last[task]
        assert now is not None
        drops.append(best - now)
    return drops


def forgetting(a: Matrix) -> float | None:
    """Returns the mean drop from the best to the final accuracy, over all of the T tasks but the
    last: the 1 / (T - 1) form. None for a single task, which cannot lose accuracy, and unless the
    learner was scored after every task.

    >>> forgetting([[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]])  # (60 + 10) / 2
    35.0
    """
    drops = _drops(a)
    return sum(drops[:-1]) / len(drops[:-1]) if drops and len(drops) > 1 else None


def forgetting_all(a: Matrix) -> float | None:
    """Returns the mean of the drops of `forgetting` over all T tasks: the 1 / T form. The drop of
    the last task is 0. None unless the learner was scored after every task.

    >>> round(forgetting_all([[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]]), 2)
    23.33
    """
    drops = _drops(a)
    return sum(drops) / len(drops) if drops else None


def learning_accuracy(a: Matrix) -> float | None:
    """Returns the mean accuracy on each task just after it was learned: the mean of the diagonal.
    Where it is low, low forgetting is no strength: little was learned that could be forgotten. None
    unless the learner was scored after every task.

    >>> learning_accuracy([[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]])
    88.33333333333333
    """
    learned = [row[task] for task, row in enumerate(a)]
    known = [value for value in learned if value is not None]
    return sum(known) / len(a) if len(known) == len(a) else None


def newest_accuracy(a: Matrix) -> float | None:
    """Returns the final accuracy on the last task. None if the learner was not scored after it.

    >>> newest_accuracy([[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]])
    95.0
    """
    return a[-1][-1]


def anytime(accuracies: Sequence[float]) -> float | None:
    """Returns any-time accuracy: the mean of the accuracies on the classes seen so far, at equally
    spaced evaluation points. None for fewer than three points.

    >>> anytime([100.0, 90.0, 50.0])
    80.0
    >>> anytime([100.0, 50.0])
    """
    if len(accuracies) < FEWEST_POINTS:
        return None
    return sum(accuracies) / len(accuracies)


def per_class(correct: Sequence[int], total: Sequence[int]) -> list[float | None]:
    """Returns the accuracy of each class in percent; None for a class without test samples.

    >>> per_class([3, 0, 4], [4, 0, 4])
    [75.0, None, 100.0]
    """
    return [percent(c, n) if n else None for c, n in zip(correct, total, strict=True)]
