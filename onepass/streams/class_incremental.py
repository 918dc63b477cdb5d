"""Tasks of disjoint classes, one after another."""

from __future__ import annotations

import torch

from onepass.base.seeds import generator
from onepass.data.base import Dataset
from onepass.streams.base import Stream
from onepass.streams.classes import ClassOrder, Tasks, deal_classes, indices_of_class, shuffled
from onepass.streams.registry import stream


@stream("class-incremental")
class ClassIncremental(Stream):
    """Tasks of disjoint classes, one after another, with samples shuffled within each task.

    Parameters
    ----------
    tasks
        Number of tasks, or the groups of classes themselves. A number deals the classes out as
        evenly as possible, larger tasks first.
    batch
        Samples in a batch; the last batch of a task may be shorter and is kept.
    class_order
        `natural` (0, 1, 2, …) or `shuffled` by the seed; must be `natural` if `tasks` lists groups.
    boundaries
        Whether the learner gets the task boundaries; if not, it infers them.

    >>> from onepass.data import load
    >>> stream = ClassIncremental(load("digits"), tasks=5, batch=10, seed=0)
    >>> len(stream), stream.tasks[1]
    (146, (2, 3))
    """

    def __init__(
        self,
        dataset: Dataset,
        tasks: Tasks = 5,
        batch: int = 10,
        class_order: ClassOrder = "natural",
        seed: int = 0,
        boundaries: bool = True,
    ) -> None:
        groups = deal_classes(dataset, tasks, class_order, seed)
        rng = generator(seed, "stream order")
        order = []
        for group in groups:
            index = torch.cat([indices_of_class(dataset, label) for label in group])
            order.append(shuffled(index.sort().values, rng))  # independent of the listed order
        super().__init__(dataset, order, groups, batch, boundaries)
