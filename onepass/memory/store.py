"""The base class of memories: samples in numbered slots, and random draws from them. Subclasses
decide which samples to store and which to replace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.devices import is_on_host
from onepass.base.errors import InputError
from onepass.base.expect import expect_alike, expect_number, expect_rows
from onepass.base.parts import Samples, StatefulPart
from onepass.memory.sampling import draw_distinct, nth_true


class Store(StatefulPart, ABC):
    """A memory of raw samples `x`, their rows in the head `y`, and further `fields` of a method.

    Slots 0 to `size` - 1 are occupied. Writing and drawing use only device operations of static
    shape, so samples to drop are written too: to a scratch row behind the last slot.

    Parameters
    ----------
    capacity
        The largest number of samples.
    shape, dtype
        The shape and dtype of a sample.
    rng
        The generator of draws. Its device is the memory's device.
    fields
        Further values to store for each sample: by name, a tensor with the shape and dtype of one
        sample's value.
    per_class
        The names of the fields whose last dimension is the head's rows. They grow with the head.
    """

    tensors: ClassVar[tuple[str, ...]] = ("size",)

    def __init__(
        self,
        capacity: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        rng: torch.Generator,
        fields: Mapping[str, Tensor] | None = None,
        per_class: Sequence[str] = (),
    ) -> None:
        self.capacity = capacity
        self.per_class = tuple(per_class)
        self.rng = rng
        try:
            self.x = torch.zeros(capacity + 1, *shape, dtype=dtype, device=rng.device)
        except (RuntimeError, MemoryError):
            raise InputError(
                f"there is no room here for a memory of {capacity} samples: choose a smaller one"
            ) from None
        self.y = torch.zeros(capacity + 1, dtype=torch.int64, device=rng.device)
        self.fields = {
            name: torch.zeros(capacity + 1, *example.shape, dtype=example.dtype, device=rng.device)
            for name, example in (fields or {}).items()
        }
        self.size = torch.zeros((), dtype=torch.int64, device=rng.device)
        # 1, 2, ..., the number of slots up to each one, for groups that are the rest of others
        self._upto = torch.arange(1, capacity + 2, dtype=torch.int32, device=rng.device)

    @abstractmethod
    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Offers samples of the stream, which the memory may store or drop, with a value for each
        field."""

    def grow(self, rows: int) -> None:
        for name in self.per_class:
            held = self.fields[name]
            self.fields[name] = F.pad(held, (0, rows - held.shape[-1]))

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the values stored for each sample."""
        return tuple(self._columns)

    @property
    def _columns(self) -> dict[str, Tensor]:
        return {"x": self.x, "y": self.y, **self.fields}

    @property
    def bytes(self) -> int:
        """The bytes of the samples and fields of a full memory."""
        columns = self._columns.values()
        return self.capacity * sum(column[0].numel() * column.element_size() for column in columns)

    def write(self, slots: Tensor, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Writes samples into slots, without changing `size`. Slots are distinct, except that any
        number of samples may go to the scratch row, slot `capacity`."""
        self.x[slots] = x
        self.y[slots] = y
        for name, values in fields.items():
            self.fields[name][slots] = values

    def draw_slots(
        self, count: int, groups: Sequence[Tensor | None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draws `count` distinct occupied slots at random. Returns them with a mask of the genuine
        ones, as `draw_distinct` does.

        With `groups` it draws `count` slots for each group of classes, (groups, count). A group is
        a mask over the head's rows. One group may be None: all classes that are in no other group,
        which is cheaper than a mask. This scans the labels once per mask."""
        if groups is None:
            return draw_distinct(count, self.size, self.rng)
        counts = self._counts(groups)  # each group's samples up to a slot (groups, slots)
        last = (self.size.view(1) - 1).clamp(min=0)
        # the number of samples of each group                           (groups)
        held = counts.index_select(1, last).squeeze(1) * (self.size > 0)
        ranks, genuine = draw_distinct(count, held, self.rng)  # ranks within each group
        return nth_true(counts, ranks).clamp(max=self.capacity), genuine

    def draw_independent_slots(self, draws: int, count: int) -> tuple[Tensor, Tensor]:
        """Makes independent draws of `count` distinct slots each. Returns the slots (draws, count)
        with a mask of the genuine ones."""
        return draw_distinct(count, self.size.expand(draws), self.rng)

    def _counts(self, groups: Sequence[Tensor | None]) -> Tensor:
        """Returns the cumulative number of each group's samples over the slots, (groups, slots)."""
        counts = self._upto.new_empty(len(groups), len(self._upto))
        rows = list(zip(counts, groups, strict=True))
        others = [self._count(group, row) for row, group in rows if group is not None]
        for row, group in rows:
            if group is None:
                torch.sub(self._upto, reduce(torch.add, others), out=row)
        return counts

    def _count(self, group: Tensor, out: Tensor) -> Tensor:
        """Returns one group's row of `_counts`, written into `out`."""
        members = group.int().index_select(0, self.y)
        return torch.cumsum(members, 0, dtype=torch.int32, out=out)

    def samples_at(self, slots: Tensor, genuine: Tensor, fallback: Samples) -> Samples:
        """Returns the samples in these slots, with weight 0 where they are not genuine. If none is
        genuine, there was nothing to draw, and the batch has the fallback's samples at weight 0."""
        x, y = self.x.index_select(0, slots), self.y.index_select(0, slots)
        some = genuine[:1]  # genuine slots come first in a draw
        # on a GPU, reading `some` would wait for the device, so the fallback is always computed
        if not (is_on_host(some) and some.tolist() == [True]):
            cycle = torch.arange(len(slots), device=slots.device) % len(fallback.y)
            y = torch.where(some, y, fallback.y.index_select(0, cycle))
            some = some.view(-1, *[1] * (x.ndim - 1))
            x = torch.where(some, x, fallback.x.index_select(0, cycle))
        return Samples(x, y, genuine.to(fallback.weight.dtype))

    def draw(self, count: int, fallback: Samples, among: Tensor | None = None) -> Samples:
        """Returns `count` distinct random samples. `among`, a mask over the head's rows, restricts
        the draw to some classes. If there are too few samples, repetitions of weight 0 follow. If
        there is none, all are samples of the fallback, at weight 0."""
        slots, genuine = self.draw_slots(count, None if among is None else [among])
        return self.samples_at(slots.view(-1), genuine.view(-1), fallback)

    def forget(self, chosen: Tensor) -> None:
        """Removes the samples where the mask `chosen` over the occupied slots is true. The others
        move to the front, and the freed slots are set to zero, so that nothing of a removed sample
        stays."""
        stays = torch.nonzero(~chosen).flatten()
        for column in self._columns.values():
            staying = column.index_select(0, stays)
            column.zero_()
            column[: len(stays)] = staying  # in place, because a captured step reads it
        self.size.fill_(len(stays))

    def empty_state(self) -> dict[str, Any]:
        """Returns the `state_dict` of an empty memory."""
        columns = {name: col[: self.saved_slots(0)] for name, col in self._columns.items()}
        state = {**super().state_dict(), **columns}
        return {name: torch.zeros_like(value) for name, value in state.items()}

    def saved_slots(self, size: int) -> int:
        """Returns how many slots a state saves when `size` samples are stored."""
        return size

    def state_dict(self) -> dict[str, Any]:
        saved = self.saved_slots(int(self.size))
        columns = {name: column[:saved].clone() for name, column in self._columns.items()}
        return {**super().state_dict(), **columns}

    def expect(self, saved: dict[str, Any], classes: int, name: str) -> None:
        """Raises a CheckpointError unless a saved state fits: at most `capacity` samples, of this
        shape and dtype, whose rows in the head are below `classes`."""
        size = expect_number(saved.get("size"), 0, self.capacity, f"{name}.size")
        slots = self.saved_slots(size)
        columns = {name: column[:slots] for name, column in self._columns.items()}
        expect_alike(saved, {**super().state_dict(), **columns}, name)
        expect_rows(saved["y"], classes, f"{name}.y")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, column in self._columns.items():
            column[: len(state[name])] = state[name].to(column.device)

    def mark(self) -> dict[str, Tensor]:
        """Returns no tensors, because a step that is undone has stored nothing yet: samples are
        stored after the optimiser's update."""
        return {}
