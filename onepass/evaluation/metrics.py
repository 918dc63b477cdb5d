"""Pure functions of the accuracy matrix.

a[i][j] is the accuracy in percent on the test images of task j after learning task i (both from
0), with all classes seen so far competing; it is lower triangular, with None above the diagonal.
The worked example below: three tasks, the first forgotten twice.

>>> a = [[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]]
"""

from __future__ import annotations

from collections.abc import Sequence

FEWEST_POINTS = 3  # of which a mean says something about the way and not only about the end
Matrix = Sequence[Sequence[float | None]]


def accuracy_matrix(
    correct: Sequence[Sequence[int] | None],
    total: Sequence[int],
    tasks: Sequence[Sequence[int]],
) -> list[list[float | None]]:
    """From correct predictions per class after each task (None where it was not scored), and test
    images per class.

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
    """The mean of the last row; it equals the accuracy over all test images if tasks are equally
    large.

    >>> mean_task_accuracy([[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]])
    65.0
    """
    last = [value for value in a[-1] if value is not None]
    return sum(last) / len(last)


def _drops(a: Matrix) -> list[float] | None:
    """How far each task is below the best it ever was; None where not every task was scored."""
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
    """The mean drop from the best ever over all tasks but the last: the 1 / (T - 1) form. None for
    a single task, which cannot have been forgotten, and where not every task was scored.

    >>> forgetting([[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]])  # (60 + 10) / 2
    35.0
    """
    drops = _drops(a)
    return sum(drops[:-1]) / len(drops[:-1]) if drops and len(drops) > 1 else None


def forgetting_all(a: Matrix) -> float | None:
    """The same drops over all T tasks, the last one counting as 0: the 1 / T form.

    >>> round(forgetting_all([[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]]), 2)
    23.33
    """
    drops = _drops(a)
    return sum(drops) / len(drops) if drops else None


def anytime(accuracies: Sequence[float]) -> float | None:
    """The mean of the accuracies on classes seen so far, over equally spaced points of the stream.
    None for fewer than three points.

    >>> anytime([100.0, 90.0, 50.0])
    80.0
    >>> anytime([100.0, 50.0])
    """
    if len(accuracies) < FEWEST_POINTS:
        return None
    return sum(accuracies) / len(accuracies)


def per_class(correct: Sequence[int], total: Sequence[int]) -> list[float | None]:
    """Accuracy of each class; None for a class without test images.

    >>> per_class([3, 0, 4], [4, 0, 4])
    [75.0, None, 100.0]
    """
    return [percent(c, n) if n else None for c, n in zip(correct, total, strict=True)]
