"""Dealing classes out to tasks, and samples out of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from onepass.base.errors import InputError
from onepass.base.seeds import generator, permutation
from onepass.base.settings import expect_type
from onepass.data.base import Dataset

ClassOrder = Literal["natural", "shuffled"]
Tasks = int | Sequence[Sequence[int]]


def deal_classes(
    dataset: Dataset, tasks: Tasks, class_order: ClassOrder, seed: int
) -> list[list[int]]:
    """The classes of each task: as named, or dealt out as evenly as they go, larger tasks first."""
    expect_type("class_order", class_order, ClassOrder)
    if not isinstance(tasks, int):
        if class_order != "natural":
            raise InputError("tasks that name their classes have an order already")
        return _require_samples(dataset, _check_groups(tasks))
    if not 1 <= tasks <= dataset.classes:
        raise InputError(
            f"tasks must lie between 1 and the {dataset.classes} classes of {dataset.name!r}, "
            f"not {tasks}"
        )
    order = torch.arange(dataset.classes)  # natural: by label
    if class_order == "shuffled":
        order = permutation(dataset.classes, generator(seed, "class order"))
    return _require_samples(dataset, [group.tolist() for group in torch.tensor_split(order, tasks)])


def indices_of_class(dataset: Dataset, label: int) -> Tensor:
    """The training indices of a class."""
    return torch.nonzero(dataset.train_y == label).flatten()


def shuffled(index: Tensor, rng: torch.Generator) -> Tensor:
    return index[permutation(len(index), rng)]


def _check_groups(tasks: object) -> list[list[int]]:
    if not isinstance(tasks, Sequence) or not all(isinstance(one, Sequence) for one in tasks):
        raise InputError(f"tasks must be a number or a list of groups of classes, not {tasks!r}")
    groups = [list(group) for group in tasks]
    flat = [label for group in groups for label in group]
    if not groups or not all(groups):
        raise InputError("tasks must name at least one class each")
    if len(set(flat)) != len(flat):
        raise InputError("tasks must be disjoint: a class stands in two of them")
    return groups


def _require_samples(dataset: Dataset, groups: list[list[int]]) -> list[list[int]]:
    present = set(dataset.train_y.tolist())
    missing = sorted({label for group in groups for label in group} - present)
    if missing:
        raise InputError(f"{dataset.name!r} has no training samples of the classes {missing}")
    return groups
