"""Disjoint groups of classes, one group after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from onepass.data.base import Dataset
from onepass.errors import InputError
from onepass.seeds import generator, permutation
from onepass.streams.base import Stream

ClassOrder = Literal["natural", "shuffled"]


class ClassIncremental(Stream):
    """Tasks of disjoint classes; inside a task the samples are shuffled.

    Parameters
    ----------
    tasks
        How many tasks (classes are dealt out as evenly as they go, larger tasks first), or the
        groups of classes themselves.
    batch
        Samples a step; the last batch of a task may be shorter and is kept.
    class_order
        `natural` (0, 1, 2, …) or `shuffled` by the seed.

    >>> from onepass.data import load
    >>> stream = ClassIncremental(load("digits"), tasks=5, batch=10, seed=0)
    >>> len(stream), stream.tasks[1]
    (146, (2, 3))
    """

    def __init__(
        self,
        dataset: Dataset,
        tasks: int | Sequence[Sequence[int]] = 5,
        batch: int = 10,
        class_order: ClassOrder = "natural",
        seed: int = 0,
    ) -> None:
        if batch < 1:
            raise InputError(f"batch must be at least 1, not {batch}")
        if class_order not in ("natural", "shuffled"):
            raise InputError(f"class_order must be natural or shuffled, not {class_order!r}")
        groups = _groups(dataset, tasks, class_order, seed)
        source = generator(seed, "stream order")
        parts = []
        for group in groups:
            index = torch.nonzero(torch.isin(dataset.train_y, torch.tensor(group))).flatten()
            parts.append(index[permutation(len(index), source)])
        spec: dict[str, object] = {
            "stream": "class-incremental",
            "tasks": [list(group) for group in groups],
            "batch": batch,
            "class_order": class_order,
            "seed": seed,
        }
        super().__init__(dataset, parts, groups, batch, spec)


def _groups(
    dataset: Dataset, tasks: int | Sequence[Sequence[int]], class_order: ClassOrder, seed: int
) -> list[list[int]]:
    if not isinstance(tasks, int):
        return _checked_groups(dataset, tasks)
    if not 1 <= tasks <= dataset.classes:
        raise InputError(
            f"tasks must lie between 1 and the {dataset.classes} classes of {dataset.name!r}, "
            f"not {tasks}"
        )
    order = torch.arange(dataset.classes)
    if class_order == "shuffled":
        order = permutation(dataset.classes, generator(seed, "class order"))
    return [part.tolist() for part in torch.tensor_split(order, tasks)]


def _checked_groups(dataset: Dataset, tasks: Sequence[Sequence[int]]) -> list[list[int]]:
    groups = [list(group) for group in tasks]
    flat = [label for group in groups for label in group]
    present = set(dataset.train_y.tolist())
    if not groups or not all(groups):
        raise InputError("tasks must name at least one class each")
    if len(set(flat)) != len(flat):
        raise InputError("tasks must be disjoint: a class stands in two of them")
    if missing := sorted(set(flat) - present):
        raise InputError(f"tasks name classes that {dataset.name!r} does not have: {missing}")
    return groups
