"""A stream: an order over a dataset's training samples, cut into small batches."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from onepass.base import devices
from onepass.base.errors import InputError
from onepass.base.settings import expect_type
from onepass.base.text import html_table, quoted, short_value
from onepass.data.base import Dataset

log = logging.getLogger("onepass")


class Stream:
    """Batches (x, y). Iterating yields nothing but batches: where tasks begin and which classes
    they hold stay on the evaluator's side.

    A stream of your own derives from this class, or from one of the others, works out an order and
    may override `change`. Under `@stream` it has a name for the command line too.

    Parameters
    ----------
    order
        The indices of training samples in the order in which they arrive, a tensor for each task.
    tasks
        The classes that each task brings; by default those of its samples that no task brought
        before.
    batch
        Samples a step; the last batch of a task may be shorter.
    boundaries
        Whether the learner is told where a task begins; if not, it has to find out.
    derived
        What followed from the arguments and the seed and is worth a line in a run's record.

    >>> from onepass.data import load
    >>> digits = load("digits")
    >>> backwards = Stream(digits, [torch.arange(len(digits.train_y)).flip(0)], batch=50)
    >>> len(backwards), backwards.tasks
    (29, [(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)])
    """

    key: ClassVar[str] = ""  # of a class under @stream

    def __init__(
        self,
        dataset: Dataset,
        order: Sequence[Tensor],
        tasks: Sequence[Sequence[int]] | None = None,
        batch: int = 10,
        boundaries: bool = True,
        *,
        derived: Mapping[str, object] | None = None,
    ) -> None:
        expect_type("batch", batch, int)
        expect_type("boundaries", boundaries, bool)
        if batch < 1:
            raise InputError(f"batch must be at least 1, not {batch}")
        _check_order(dataset, order)
        if empty := [task for task, index in enumerate(order) if not len(index)]:
            raise InputError(f"task {empty[0] + 1} of the stream would have no samples")
        self.dataset = dataset
        groups = _first_seen(dataset, order) if tasks is None else tasks
        self.tasks = [tuple(group) for group in groups]
        self.boundaries = boundaries
        # What was asked for, from which `make` makes the stream again: filled in by @stream.
        self.spec: dict[str, object] = {"stream": type(self).__name__}
        self.derived: dict[str, object] = {"classes": self.tasks, **(derived or {})}
        pieces = [torch.split(index, batch) for index in order]
        self._batches = [piece for task in pieces for piece in task]
        self._places = self._batches  # the same indices, where the samples are
        self._task_of = [number for number, task in enumerate(pieces) for _ in task]

    def __len__(self) -> int:
        return len(self._batches)

    def __repr__(self) -> str:
        told = ", ".join(f"{value} {name}" for name, value in self._facts.items())
        return f"<{type(self).__name__} of {quoted(self.dataset.name)}: {told}>"

    def _repr_html_(self) -> str:
        chosen = {name: short_value(value) for name, value in self.spec.items() if name != "stream"}
        facts = {"dataset": self.dataset.name, **self._facts, **chosen}
        return html_table(type(self).__name__, facts)

    @property
    def _facts(self) -> dict[str, object]:
        return {"tasks": len(self.tasks), "steps": len(self)}

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        x = self.dataset.train_x.index_select(0, self._places[step])  # a copy
        changed = self.change(x, step)
        if changed.shape != x.shape or changed.dtype != x.dtype:
            raise InputError(
                f"{type(self).__name__}.change must keep {x.dtype} {tuple(x.shape)}, but it gave "
                f"{changed.dtype} {tuple(changed.shape)}"
            )
        return changed, self.dataset.train_y.index_select(0, self._batches[step])

    def samples_of(self, task: int) -> Tensor:
        """Returns all samples of a task, as they come."""
        steps = [step for step in range(len(self)) if self.task_of(step) == task]
        return torch.cat([self.batch(step)[0] for step in steps])

    def check_scorable(self) -> None:
        """Refuses a stream with a task of which there are no test samples."""
        tested = set(self.dataset.test_y.tolist())
        for task, group in enumerate(self.tasks):
            if not tested.intersection(group):
                raise InputError(f"there are no test samples of task {task + 1}, classes {group}")

    def change(self, x: Tensor, step: int) -> Tensor:
        """What the learner is given in place of the samples of this step: as they are, unless a
        stream says otherwise. The dataset stays as it is.

        Shape and type must stay; x may lie on a GPU. The same step must give the same values
        whenever it is asked for, or a run that was stopped would go on with others: what is random
        is drawn from a generator made for the step, `seeds.generator(seed, f"noise {step}")`.
        """
        return x

    def on(self, device: torch.device) -> Stream:
        """Returns the same stream with its samples on a device; labels stay where `learn` reads
        them. Samples that would take more than half of the memory that is free there stay on the
        host, from which they are moved batch by batch: steps and scores need memory too."""
        if device.type == "cpu" or not self._has_room_on(device):
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

    def _has_room_on(self, device: torch.device) -> bool:
        size = self.dataset.train_x.nbytes + self.dataset.test_x.nbytes
        free = devices.free_gpu_bytes(device)
        if free is None or 2 * size <= free:
            return True
        log.warning(
            "%s stays on the host: it takes %d MB, and %s has %d MB left; batches are moved",
            *(quoted(self.dataset.name), size // 10**6, device, free // 10**6),
        )
        return False

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


def _check_order(dataset: Dataset, order: Sequence[Tensor]) -> None:
    whole = [
        isinstance(one, Tensor) and one.dtype == torch.int64 and one.ndim == 1 for one in order
    ]
    if not whole or not all(whole):
        raise InputError("order must hold a tensor of whole numbers for each task, at least one")
    count = len(dataset.train_y)
    if any(len(one) and not 0 <= int(one.min()) <= int(one.max()) < count for one in order):
        raise InputError(f"order must number training samples, from 0 to {count - 1}")


def _first_seen(dataset: Dataset, order: Sequence[Tensor]) -> list[list[int]]:
    """For each task, the classes of its samples that no task had before; all of its classes, if
    there is no such one: the same classes may come again with other inputs."""
    known: set[int] = set()
    groups = []
    for index in order:
        here = set(dataset.train_y[index].tolist())
        groups.append(sorted(here - known) or sorted(here))
        known |= here
    return groups
