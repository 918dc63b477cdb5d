"""Small GSA learners and streams, stepped together with the naive implementation."""

import math
from collections.abc import Iterator
from types import SimpleNamespace

import naive_gsa as naive
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from tiny_learners import BOUNDARY, as_tuples, corners, kept_logits, small
from torch import Tensor

import onepass
from onepass.base.parts import Output
from onepass.methods.gsa_variants import rates

PROPERTY = settings(derandomize=True, deadline=None, max_examples=60)
COMMON = onepass.GSA.presets["common"].settings
BALANCED = 2 / (1 + math.exp(-1))
OLD = torch.tensor([True, True, True, False, False])
NEW = ~OLD
five_logits = st.lists(st.floats(-30, 30), min_size=5, max_size=5)


def make_output(logits: Tensor, y: list[int]) -> Output:
    return Output(logits, torch.tensor(y), torch.ones(len(y), dtype=logits.dtype))


def random_logits(seed: int, samples: int, classes: int = 5) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(samples, classes, generator=source, dtype=torch.float64)


def random_labels(classes: list[int], count: int, source: torch.Generator) -> list[int]:
    picks = torch.randint(len(classes), (count,), generator=source)
    return [classes[pick] for pick in picks]


def stream(name: str, seed: int = 0) -> Iterator[str | tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(seed)
    labels: list[list[int] | str]
    if name == "tasks":
        labels = [random_labels([0, 1, 2], 10, source) for _ in range(3)]
        labels += [BOUNDARY, *(random_labels([3, 4], 10, source) for _ in range(3))]
        labels += [BOUNDARY, *(random_labels([5, 6], 10, source) for _ in range(3))]
    elif name == "late classes":  # 3 arrives in the middle of a task and of a batch, 4 after it
        labels = [[0, 1, 0, 1], BOUNDARY, [2, 2, 2, 2], [2, 2, 3, 2], [3, 2, 2], [2, 4, 3, 2]]
    elif name == "short batches":
        labels = [[0, 1, 1, 0], [1], BOUNDARY, [2], [3, 2], [2, 3, 3], BOUNDARY, [4], [5]]
    elif name == "old classes come back":
        labels = [[0, 1, 1, 0], [2, 0, 1], BOUNDARY, [0, 2, 1, 1], [3, 0, 4, 1], [3, 3, 4], [0]]
    elif name == "one class at a time":
        labels = [[0] * 4, [0] * 4, BOUNDARY, [1] * 4, [1] * 4, BOUNDARY, [2] * 4, [2] * 4]
    else:  # more classes than the head begins with
        labels = [list(range(8)), list(range(8, 15)), BOUNDARY, [15, 16, 17], [18, 15, 35], [16]]
    for item in labels:
        yield item if isinstance(item, str) else corners(item, source)


def first_task(batches: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(3)
    for size in [10] * (batches - 1) + [3]:
        yield corners(random_labels([0, 1, 2, 3], size, source), source)


def gsa(**settings: object) -> onepass.GSA:
    """Returns a small learner by the paper's equations, which the preset `common` has."""
    paper = {name: value for name, value in COMMON.items() if name != "lr"}
    return small(onepass.GSA, **{**paper, **settings})


def in_batches(gradients: list[Tensor], copies: int, first: int) -> Tensor:
    """Returns gradients in the order of the outputs.

    These are X^new and its mirror images, then X^mix and its own. A joint forward has all plain
    samples before all mirror images.
    """
    if len(gradients) == 2:
        return torch.cat(gradients)
    (joint,) = gradients
    each = joint.chunk(copies)
    return torch.cat([part[:first] for part in each] + [part[first:] for part in each])


def naive_steps(learner: onepass.GSA, items: Iterator) -> Iterator[SimpleNamespace]:
    """Yields each step of a learner with the naive implementation's values for its logits."""
    sums, rows, new = naive.Sums(), {}, set()
    for item in items:
        if item == BOUNDARY:
            learner.new_task()
            sums.new_task()
            new = set()
            continue
        x, y = item
        for label in y.tolist():
            if label not in rows:
                rows[label] = len(rows)
                new = new | {rows[label]}
        seen = set(rows.values())
        sides = (seen - new, new)
        earlier = rates(learner) if learner.steps and learner.update == "after" else None
        with kept_logits() as kept:
            step = learner.learn(x, y)
        first, mixed = (as_tuples(output) for output in step.outputs)
        copies = learner.views.per_sample
        size = len(first) // copies
        assert size == len(y) + learner.current_drawn
        for copy in range(copies):
            of_stream = first[copy * size : copy * size + len(y)]
            assert [row for _, row, _ in of_stream] == [rows[label] for label in y.tolist()]
            assert all(weight == 1 for _, _, weight in of_stream)
            replayed = first[copy * size + len(y) : (copy + 1) * size]
            assert {row for _, row, weight in replayed if weight} <= new

        measured = mixed
        if learner.statistics == "all":  # what is trained: of X^mix nothing in the first task
            measured = first + mixed if sides[0] else first
        if learner.update == "before":
            sums.add(measured, seen)
        w, v = {c: sums.w(c) for c in seen}, {c: sums.v(c) for c in seen}
        if learner.weights == "none":
            w = v = dict.fromkeys(seen, 1.0)
        if learner.update == "after":
            sums.add(measured, seen)
        arrived = new
        if learner.new_classes == "batch":
            arrived = new & {row for _, row, weight in first if weight}
        case = (first, mixed, *sides, w, v, arrived)
        yield SimpleNamespace(
            step=step,
            case=case,
            terms=naive.terms(*case),
            rates=(rates(learner) if learner.update == "before" else earlier),
            gradient=in_batches([logits.grad for logits in kept], copies, size),
            sums=sums,
        )


CASES = [
    ("tasks", {}),
    ("tasks", {"forwards": "separate", "memory": 200, "mix": 20}),
    ("tasks", {"statistics": "mix"}),
    ("tasks", {"new_classes": "task", "current": 2}),
    ("tasks", {"update": "after"}),
    ("tasks", {"weights": "none"}),
    ("tasks", {"memory": 0}),
    ("tasks", {"memory": 3}),
    ("tasks", {"fill": 1, "optimizer": "adam", "lr": 0.05}),
    ("tasks", {"head": "frozen"}),
    ("tasks", {"current": 5}),
    ("tasks", {"current": 12, "memory": 200}),
    ("tasks", {"current": 4, "forwards": "separate", "statistics": "mix"}),
    ("tasks", {"current": 3, "fill": 3, "update": "after"}),
    ("tasks", {"current": 4, "memory": 0}),
    ("late classes", {}),
    ("late classes", {"update": "after", "statistics": "mix"}),
    ("late classes", {"mix": 2}),
    ("late classes", {"current": 6}),
    ("short batches", {}),
    ("short batches", {"new_classes": "task"}),
    ("short batches", {"memory": 0}),
    ("old classes come back", {}),
    ("old classes come back", {"memory": 0}),
    ("old classes come back", {"current": 3}),
    ("one class at a time", {}),
    ("many classes", {}),
    ("many classes", {"update": "after"}),
]
each_case = pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
