"""Deals classes out to tasks, and finds the samples of classes."""

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
    """Returns the classes of each task: as listed in `tasks`, or dealt out as evenly as possible,
    larger tasks first. Raises an InputError if `tasks` is invalid or a class has no samples."""
    expect_type("class_order", class_order, ClassOrder)
    if not isinstance(tasks, int):
        if class_order != "natural":
            raise InputError(
                "class_order must be natural if tasks lists the classes: the list is their order"
            )
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
    """Returns the indices of a class's training samples."""
    return torch.nonzero(dataset.train_y == label).flatten()


def shuffled(index: Tensor, rng: torch.Generator) -> Tensor:
    """Returns the indices in random order."""
    return index[permutation(len(index), rng)]


def _check_groups(tasks: object) -> list[list[int]]:
    """Returns the groups as lists of classes. Raises an InputError unless they are disjoint and not
    empty."""
    if not isinstance(tasks, Sequence) or not all(isinstance(group, Sequence) for group in tasks):
        raise InputError(f"tasks must be a number or a list of groups of classes, not {tasks!r}")
    groups = [list(group) for group in tasks]
    flat = [label for group in groups for label in group]
    if not groups or not all(groups):
        raise InputError("tasks must list at least one class for each task")
    if len(set(flat)) != len(flat):
        raise InputError("tasks must be disjoint, but two of them list the same class")
    return groups


def _require_samples(dataset: Dataset, groups: list[list[int]]) -> list[list[int]]:
    """Returns the groups unchanged. Raises an InputError if a class has no training samples."""
    present = set(dataset.train_y.tolist())
    missing = sorted({label for group in groups for label in group} - present)
    if missing:
        raise InputError(f"{dataset.name!r} has no training samples of the classes {missing}")
    return groups
