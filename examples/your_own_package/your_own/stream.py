"""A stream with a task for each class."""

from __future__ import annotations

from onepass import ClassIncremental, Dataset
from onepass.streams import stream


@stream("one-by-one")
class OneByOne(ClassIncremental):
    """One class after another, each a task of its own."""

    def __init__(self, dataset: Dataset, batch: int = 10, seed: int = 0) -> None:
        super().__init__(dataset, tasks=dataset.classes, batch=batch, seed=seed)
