"""Tasks without sharp borders: some classes come in other tasks too."""

from __future__ import annotations

import torch

from onepass.base.errors import InputError
from onepass.base.seeds import generator, permutation
from onepass.base.settings import expect_type
from onepass.data.base import Dataset
from onepass.streams.base import Stream
from onepass.streams.classes import ClassOrder, Tasks, deal_classes, indices_of_class, shuffled
from onepass.streams.registry import stream


@stream("blurry")
class Blurry(Stream):
    """Tasks that share some classes and have others to themselves (i-Blurry, Koh et al., ICLR
    2022).

    n per cent of the classes are disjoint: they come only in their own task. The other classes are
    blurry: m per cent of each one's samples are spread evenly over the other tasks. With n = 100 or
    m = 0 the stream is class-incremental. Every sample of the classes in `tasks` comes exactly
    once. The seed decides which classes are disjoint.

    Parameters
    ----------
    n
        Percentage of disjoint classes.
    m
        Percentage of a blurry class's samples that come in other tasks than its own.
    tasks, batch, class_order, boundaries
        As for a class-incremental stream.

    >>> from onepass.data import load
    >>> stream = Blurry(load("digits"), tasks=5, n=50, m=10)
    >>> len({label for step in range(20) for label in stream.batch(step)[1].tolist()}) > 2
    True
    """

    def __init__(
        self,
        dataset: Dataset,
        tasks: Tasks = 5,
        batch: int = 10,
        n: float = 50.0,
        m: float = 10.0,
        class_order: ClassOrder = "natural",
        seed: int = 0,
        boundaries: bool = True,
    ) -> None:
        for name, value in (("n", n), ("m", m)):
            expect_type(name, value, float)
            if not 0 <= value <= 100:
                raise InputError(f"{name} must be a percentage from 0 to 100, not {value}")
        groups = deal_classes(dataset, tasks, class_order, seed)
        rng = generator(seed, "stream order")
        labels = [label for group in groups for label in group]
        # a separate generator, so that this draw does not change any shuffle
        drawn = permutation(len(labels), generator(seed, "disjoint classes"))
        disjoint = {labels[i] for i in drawn[: round(len(labels) * n / 100)].tolist()}
        pieces: list[list[torch.Tensor]] = [[] for _ in groups]  # per task, indices by class
        turn = 0  # each class starts dealing where the previous one stopped
        for home, group in enumerate(groups):
            for label in group:
                index = shuffled(indices_of_class(dataset, label), rng)
                away = 0 if label in disjoint or len(groups) == 1 else round(len(index) * m / 100)
                pieces[home].append(index[away:])  # 100 - m per cent stay in the class's own task
                others = [task for task in range(len(groups)) if task != home]
                for hand in range(len(others) if away else 0):
                    task = others[(turn + hand) % len(others)]
                    pieces[task].append(index[:away][hand :: len(others)])
                turn += away
        # sorted first, so that a shuffle depends only on the set of samples of its task
        order = [shuffled(torch.cat(piece).sort().values, rng) for piece in pieces]
        derived = {"disjoint": sorted(disjoint)}
        super().__init__(dataset, order, groups, batch, boundaries, derived=derived)
