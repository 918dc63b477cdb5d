"""Disjoint groups of classes, one group after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from onepass.data.base import Dataset
from onepass.errors import InputError
from onepass.seeds import generator, permutation
from onepass.settings import check
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
        check("batch", batch, int)
        check("class_order", class_order, ClassOrder)
        if batch < 1:
            raise InputError(f"batch must be at least 1, not {batch}")
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
        return _named(dataset, tasks)
    if not 1 <= tasks <= dataset.classes:
        raise InputError(
            f"tasks must lie between 1 and the {dataset.classes} classes of {dataset.name!r}, "
            f"not {tasks}"
        )
    order = torch.arange(dataset.classes)
    if class_order == "shuffled":
        order = permutation(dataset.classes, generator(seed, "class order"))
    return _present(dataset, [part.tolist() for part in torch.tensor_split(order, tasks)])


def _named(dataset: Dataset, tasks: object) -> list[list[int]]:
    if not isinstance(tasks, Sequence) or not all(isinstance(one, Sequence) for one in tasks):
        raise InputError(f"tasks must be a number or a list of groups of classes, not {tasks!r}")
    groups = [list(group) for group in tasks]
    flat = [label for group in groups for label in group]
    if not groups or not all(groups):
        raise InputError("tasks must name at least one class each")
    if len(set(flat)) != len(flat):
        raise InputError("tasks must be disjoint: a class stands in two of them")
    return _present(dataset, groups)


def _present(dataset: Dataset, groups: list[list[int]]) -> list[list[int]]:
    present = set(dataset.train_y.tolist())
    missing = sorted({label for group in groups for label in group} - present)
    if missing:
        raise InputError(f"{dataset.name!r} has no training samples of the classes {missing}")
    return groups
