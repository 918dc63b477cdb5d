"""Tasks of disjoint classes whose numbers of samples fall exponentially."""

from __future__ import annotations

import math

import torch

from onepass.base.errors import InputError
from onepass.base.seeds import generator
from onepass.base.settings import expect_type
from onepass.data.base import Dataset
from onepass.streams.base import Stream
from onepass.streams.classes import ClassOrder, Tasks, deal_classes, indices_of_class, shuffled
from onepass.streams.registry import stream


def long_tail_counts(counts: list[int], rho: float) -> list[int]:
    """Returns the number of samples that each class keeps: for class c of C with n_c samples,
    floor(n_c rho^(-c / (C - 1))), and at least one.

    >>> kept = long_tail_counts([500] * 100, rho=100)
    >>> kept[0], kept[-1], sum(kept)
    (500, 5, 10847)
    """
    last = max(len(counts) - 1, 1)  # a single class keeps all its samples
    return [max(1, math.floor(n / rho ** (c / last))) for c, n in enumerate(counts)]


@stream("long-tail")
class LongTail(Stream):
    """Tasks of disjoint classes whose numbers of training samples fall exponentially.

    If all classes have the same number of samples, the first one keeps `rho` times as many as the
    last. The test set is not reduced.

    Sizes fall with the label of a class, as in Long-Tailed-CIL (ECCV 2022). In natural class order
    tasks shrink ("ordered" there). In shuffled order large and small classes mix.

    Parameters
    ----------
    rho
        Ratio of the first class's share of kept samples to the last one's.
    tasks, batch, class_order, boundaries
        As for a class-incremental stream.

    >>> from onepass.data import load
    >>> stream = LongTail(load("digits"), tasks=5, rho=10)
    >>> [sum(stream.task_of(step) == task for step in range(len(stream))) for task in range(5)]
    [26, 16, 10, 6, 4]
    """

    def __init__(
        self,
        dataset: Dataset,
        tasks: Tasks = 5,
        batch: int = 10,
        rho: float = 100.0,
        class_order: ClassOrder = "natural",
        seed: int = 0,
        boundaries: bool = True,
    ) -> None:
        expect_type("rho", rho, float)
        if rho < 1:
            raise InputError(f"rho must be at least 1, not {rho}")
        groups = deal_classes(dataset, tasks, class_order, seed)
        rng = generator(seed, "stream order")
        counts = torch.bincount(dataset.train_y, minlength=dataset.classes).tolist()
        kept = long_tail_counts(counts, rho)
        # a separate generator chooses the samples, so that these draws do not change any shuffle
        chosen = generator(seed, "long tail")
        subset = {
            label: shuffled(indices_of_class(dataset, label), chosen)[: kept[label]]
            for label in range(dataset.classes)
        }
        order = [
            shuffled(torch.cat([subset[label] for label in group]).sort().values, rng)
            for group in groups
        ]
        super().__init__(dataset, order, groups, batch, boundaries, derived={"counts": kept})
