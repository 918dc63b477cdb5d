"""A stream: an order over the training samples of a dataset, cut into small batches."""

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
    """Batches (x, y) of a dataset in a fixed order.

    Iteration yields only batches. Where tasks begin and which classes they hold is known to the
    evaluator, not to the learner.

    A stream of your own derives from this class or from one of its subclasses. It computes an order
    and may override `change`. Under `@stream` it also has a name for the command line.

    Parameters
    ----------
    order
        Indices of training samples in the order of arrival, one tensor for each task.
    tasks
        Classes that each task brings; by default those of its samples that no earlier task has, or
        all of them if there are none.
    batch
        Samples in a batch; the last batch of a task may be shorter.
    boundaries
        Whether the learner gets the task boundaries; if not, it infers them.
    derived
        Values that follow from the arguments and the seed, to be stored in a run's record.

    >>> from onepass.data import load
    >>> digits = load("digits")
    >>> backwards = Stream(digits, [torch.arange(len(digits.train_y)).flip(0)], batch=50)
    >>> len(backwards), backwards.tasks
    (29, [(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)])
    """

    key: ClassVar[str] = ""  # the name that @stream gives

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
            raise InputError(f"task {empty[0] + 1} of the stream has no samples")
        self.dataset = dataset
        groups = _first_seen(dataset, order) if tasks is None else tasks
        self.tasks = [tuple(group) for group in groups]
        self.boundaries = boundaries
        # The arguments from which `make_stream` makes this stream again; @stream fills them in.
        self.spec: dict[str, object] = {"stream": type(self).__name__}
        self.derived: dict[str, object] = {"classes": self.tasks, **(derived or {})}
        pieces = [torch.split(index, batch) for index in order]
        self._batches = [piece for task in pieces for piece in task]
        self._device_batches = self._batches  # the same indices, on the device of the samples
        self._task_of = [number for number, task in enumerate(pieces) for _ in task]

    def __len__(self) -> int:
        return len(self._batches)

    def __repr__(self) -> str:
        facts = ", ".join(f"{value} {name}" for name, value in self._facts.items())
        return f"<{type(self).__name__} of {quoted(self.dataset.name)}: {facts}>"

    def _repr_html_(self) -> str:
        chosen = {name: short_value(value) for name, value in self.spec.items() if name != "stream"}
        facts = {"dataset": self.dataset.name, **self._facts, **chosen}
        return html_table(type(self).__name__, facts)

    @property
    def _facts(self) -> dict[str, object]:
        return {"tasks": len(self.tasks), "steps": len(self)}

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Returns x and y of a step, after `change`; x lies where the dataset's samples lie."""
        x = self.dataset.train_x.index_select(0, self._device_batches[step])  # a copy
        changed = self.change(x, step)
        if changed.shape != x.shape or changed.dtype != x.dtype:
            raise InputError(
                f"{type(self).__name__}.change must keep {x.dtype} {tuple(x.shape)}, "
                f"but it returned {changed.dtype} {tuple(changed.shape)}"
            )
        return changed, self.dataset.train_y.index_select(0, self._batches[step])

    def samples_of(self, task: int) -> Tensor:
        """Returns all samples of a task, after `change`, in the order of arrival."""
        steps = [step for step in range(len(self)) if self.task_of(step) == task]
        return torch.cat([self.batch(step)[0] for step in steps])

    def check_scorable(self) -> None:
        """Raises an InputError if no class of a task has test samples."""
        tested = set(self.dataset.test_y.tolist())
        for task, group in enumerate(self.tasks):
            if not tested.intersection(group):
                raise InputError(f"there are no test samples of task {task + 1}, classes {group}")

    def change(self, x: Tensor, step: int) -> Tensor:
        """Returns the samples that the learner gets in place of `x`, those of this step. By default
        they are unchanged; a stream may override this. `x` is a copy, so the dataset never changes.

        Shape and type must stay; x may lie on a GPU. The same step must always give the same
        values, or a resumed run would see others. Draw random numbers from a generator made for the
        step, `seeds.generator(seed, f"noise {step}")`."""
        return x

    def on(self, device: torch.device) -> Stream:
        """Returns the same stream with its samples on a device. Labels stay on the CPU, where
        `learn` reads them.

        Returns this stream itself for the CPU, and, with a logged warning, if the samples are
        larger than half of the free GPU memory. They are then moved batch by batch, because steps
        and scores need GPU memory too."""
        if device.type == "cpu" or not self._has_room_on(device):
            return self
        moved = copy.copy(self)  # shares everything that is not replaced below
        moved.dataset = replace(
            self.dataset,
            train_x=self.dataset.train_x.to(device),
            test_x=self.dataset.test_x.to(device),
        )
        sizes = [len(index) for index in self._batches]
        moved._device_batches = list(torch.split(torch.cat(self._batches).to(device), sizes))
        return moved

    def _has_room_on(self, device: torch.device) -> bool:
        size = self.dataset.train_x.nbytes + self.dataset.test_x.nbytes
        free = devices.free_gpu_bytes(device)
        if free is None or 2 * size <= free:
            return True
        log.warning(
            "%s stays in RAM and is moved batch by batch: it has %d MB, and %s has %d MB free",
            *(quoted(self.dataset.name), size // 10**6, device, free // 10**6),
        )
        return False

    def indices(self, step: int) -> Tensor:
        """Returns the indices of a step's samples in the training data of the dataset."""
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
    """Raises an InputError unless `order` holds valid indices, in at least one task."""
    valid = [
        isinstance(index, Tensor) and index.dtype == torch.int64 and index.ndim == 1
        for index in order
    ]
    if not valid or not all(valid):
        raise InputError("order must hold an int64 tensor (n) for each task, and at least one task")
    count = len(dataset.train_y)
    if any(len(index) and not 0 <= int(index.min()) <= int(index.max()) < count for index in order):
        raise InputError(f"order must hold indices of training samples, from 0 to {count - 1}")


def _first_seen(dataset: Dataset, order: Sequence[Tensor]) -> list[list[int]]:
    """Returns, for each task, the classes of its samples that no earlier task has.

    For a task without new classes, it returns all classes of the task: the same classes may come
    again with other inputs."""
    known: set[int] = set()
    groups = []
    for index in order:
        present = set(dataset.train_y[index].tolist())
        groups.append(sorted(present - known) or sorted(present))
        known |= present
    return groups
