"""A stream: an order over a dataset's training samples, cut into small batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from onepass.data.base import Dataset
from onepass.errors import InputError
from onepass.settings import check


class Stream:
    """Batches (x, y), each sample once. Iterating yields nothing but batches: where tasks begin
    and which classes they hold stay on the evaluator's side.

    Parameters
    ----------
    parts
        One tensor of training indices per task, in the order in which they arrive.
    tasks
        The classes that each task brings.
    boundaries
        Whether the learner is told where a task begins; if not, it has to find out.
    spec
        What was asked for: the table from which `make` makes the stream again.
    derived
        What followed from it and the seed, for the record.
    """

    def __init__(
        self,
        dataset: Dataset,
        parts: Sequence[Tensor],
        tasks: Sequence[Sequence[int]],
        batch: int,
        boundaries: bool = True,
        *,
        spec: dict[str, object],
        derived: dict[str, object],
    ) -> None:
        check("batch", batch, int)
        check("boundaries", boundaries, bool)
        if batch < 1:
            raise InputError(f"batch must be at least 1, not {batch}")
        self.dataset = dataset
        self.tasks = [tuple(group) for group in tasks]
        self.boundaries = boundaries
        self.spec = {**spec, "batch": batch, "boundaries": boundaries}
        self.derived = {"classes": self.tasks, **derived}
        if empty := [task for task, part in enumerate(parts) if not len(part)]:
            raise InputError(f"task {empty[0] + 1} of the stream would have no samples")
        pieces = [torch.split(part, batch) for part in parts]
        self._batches = [piece for part in pieces for piece in part]
        self._places = self._batches
        self._task_of = [task for task, part in enumerate(pieces) for _ in part]

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = self.dataset.train_x.index_select(0, self._places[step])
        return x, self.dataset.train_y[self._batches[step]]

    def on(self, device: torch.device) -> Stream:
        """The same stream with its samples on a device; labels stay where `learn` reads them."""
        if device.type == "cpu":
            return self
        moved = copy.copy(self)
        moved.dataset = replace(
            self.dataset,
            train_x=self.dataset.train_x.to(device),
            test_x=self.dataset.test_x.to(device),
        )
        sizes = [len(index) for index in self._batches]
        moved._places = list(torch.split(torch.cat(self._batches).to(device), sizes))
        return moved

    def indices(self, step: int) -> Tensor:
        return self._batches[step]

    def task_of(self, step: int) -> int:
        return self._task_of[step]

    def starts_task(self, step: int) -> bool:
        return step == 0 or self._task_of[step] != self._task_of[step - 1]

    def ends_task(self, step: int) -> bool:
        return step == len(self) - 1 or self.starts_task(step + 1)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self.batch(step) for step in range(len(self)))
