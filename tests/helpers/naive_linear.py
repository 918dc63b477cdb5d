"""A linear softmax classifier in plain Python loops, and small streams of vectors for it."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from tiny_learners import BOUNDARY, batches, parameters
from torch import Tensor

from onepass.base.parts import Step

FEATURES = 6
STREAMS: dict[str, list[list[int] | str]] = {
    "tasks": [
        *([0, 1, 2, 0, 1, 2, 2, 1, 0, 0], [2, 1, 0, 1, 1, 0, 2, 2, 1, 0], [0, 2, 1, 1, 2, 0, 0]),
        *(BOUNDARY, [3, 4, 3, 3, 4, 4, 3, 4, 3, 4], [4, 3, 3, 4, 3, 4], [3, 3, 4, 4]),
        *(BOUNDARY, [5, 6, 6, 5, 5, 6, 5, 6, 6, 5], [6, 5, 5], [5, 6, 6, 5]),
    ],
    "late classes": [[0, 1, 0, 1], BOUNDARY, [2, 2, 2], [2, 2, 3, 2], [3, 2, 2], [2, 4, 3, 2]],
    "short batches": [[0, 1, 1, 0], [1], BOUNDARY, [2], [3, 2], [2, 3, 3], BOUNDARY, [4], [5]],
    "old classes come back": [[0, 1, 1, 0], [2, 0], BOUNDARY, [0, 2, 1], [3, 0, 4, 1], [3, 4], [0]],
    "one class": [[0] * 4, [0] * 4, [0]],
    "one class at a time": [[0] * 4, [0] * 4, BOUNDARY, [1] * 4, [1] * 4, BOUNDARY, [2] * 4, [2]],
    "many classes": [
        list(range(8)),
        list(range(8, 15)),
        BOUNDARY,
        [15, 16, 17],
        [18, 15, 35],
        [16],
    ],
}

Row = list[float]
Weights = list[Row]  # for each class the weights of the features, then the bias
Labelled = list[tuple[Row, int]]


def items(name: str, seed: int = 0) -> Iterator[str | tuple[Tensor, Tensor]]:
    """Yields boundaries and batches, vectors around one corner per class."""
    return batches(STREAMS[name], seed)


class NaiveStep(NamedTuple):
    """A step of a linear learner, and the inputs that plain loops need to repeat it."""

    step: Step
    before: Weights  # of the head
    stream: Labelled  # rows of the head for labels
    seen: set[int]  # rows that have a class
    held: int  # samples in the memory before the step
    tasks: int  # boundaries so far


def naive_steps(learner, name: str) -> Iterator[NaiveStep]:
    """Yields each step of a learner as it is taken.

    Steps on which the head grew are left out, because the initial values of its new rows are
    unknown before.
    """
    row_of, tasks = {}, 0
    for item in items(name):
        if item == BOUNDARY:
            learner.new_task()
            tasks += 1
            continue
        x, y = item
        for label in y.tolist():
            row_of.setdefault(label, len(row_of))
        rows = [row_of[label] for label in y.tolist()]
        held = int(learner.store.size) if hasattr(learner, "store") else 0
        before = weights(learner)
        step = learner.learn(x, y)
        if len(row_of) <= len(before):
            stream = list(zip(x.tolist(), rows, strict=True))
            yield NaiveStep(step, before, stream, set(row_of.values()), held, tasks)


def mean_loss(theta: Weights, samples: Labelled, seen: set[int]) -> float:
    """Returns the mean loss, 0 if there are no samples."""
    return sum(loss(theta, *entry, seen) for entry in samples) / max(len(samples), 1)


def vectors(count: int, seed: int = 7) -> Tensor:
    return torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))


def teach(learner, name: str, seed: int = 0) -> Tensor:
    """Returns all parameters after the stream of this name."""
    return parameters(learner, STREAMS[name], seed)


def record_calls(owner, name: str) -> list[tuple]:
    """Records the first argument and the return value of each later call of a method."""
    kept, plain = [], getattr(owner, name)

    def call(first, *arguments, **named):
        kept.append((first, plain(first, *arguments, **named)))
        return kept[-1][1]

    setattr(owner, name, call)
    return kept


def weights(learner) -> Weights:
    head = learner.model.head
    return torch.cat([head.weight, head.bias.unsqueeze(1)], dim=1).tolist()


def weighted(samples) -> Labelled:
    """Returns the samples whose weight is not zero, as (x, y)."""
    rows = zip(samples.x.tolist(), samples.y.tolist(), samples.weight.tolist(), strict=True)
    return [(x, y) for x, y, weight in rows if weight]


def loss(theta: Weights, x: Row, y: int, seen: set[int]) -> float:
    logits = _logits(theta, x, seen)
    top = max(logits.values())
    return top + math.log(sum(math.exp(o - top) for o in logits.values())) - logits[y]


def gradient(theta: Weights, samples: Labelled, seen: set[int]) -> Weights:
    """Returns the gradient of the mean loss, zeros if there are no samples."""
    total = [[0.0] * len(row) for row in theta]
    for x, y in samples:
        for c in seen:
            p = math.exp(-loss(theta, x, c, seen))
            for i, value in enumerate([*x, 1.0]):
                total[c][i] += (p - (c == y)) * value / len(samples)
    return total


def dot(a: Weights, b: Weights) -> float:
    return sum(
        p * q for entry, two in zip(a, b, strict=True) for p, q in zip(entry, two, strict=True)
    )


def add_scaled(a: Weights, b: Weights, factor: float) -> Weights:
    """Returns a + factor b."""
    return [
        [p + factor * q for p, q in zip(row, other, strict=True)]
        for row, other in zip(a, b, strict=True)
    ]


def _logits(theta: Weights, x: Row, seen: set[int]) -> dict[int, float]:
    return {c: sum(w * v for w, v in zip(theta[c], [*x, 1.0], strict=True)) for c in seen}
