"""Samples in numbered slots, and random draws of them. What is let in and what has to go is the
business of the memories made from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.devices import at_hand
from onepass.base.errors import InputError
from onepass.base.expect import expect_alike, expect_number, expect_rows
from onepass.base.parts import Samples, StatefulPart
from onepass.memory.sampling import draw_distinct, nth_true


class Store(StatefulPart, ABC):
    """Raw samples as copies, their rows in the head, and fields of the method's own.

    Writing and drawing take only device operations of static shape; what is not let in is written
    to a scratch row behind the last slot.

    Parameters
    ----------
    capacity
        How many samples are kept at most.
    shape, dtype
        Of a sample.
    rng
        Of draws; its device is the store's.
    fields
        Further values kept for each sample, by name: one example each, of the dtype and shape.
    per_class
        Which of them have a last dimension with one place for each row of the head: they become
        wider with it.
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
            raise InputError(f"there is no room here for a memory of {capacity} samples") from None
        self.y = torch.zeros(capacity + 1, dtype=torch.int64, device=rng.device)
        self.fields = {
            name: torch.zeros(capacity + 1, *one.shape, dtype=one.dtype, device=rng.device)
            for name, one in (fields or {}).items()
        }
        self.size = torch.zeros((), dtype=torch.int64, device=rng.device)
        self._upto = torch.arange(1, capacity + 2, dtype=torch.int32, device=rng.device)

    @abstractmethod
    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Lets in samples of the stream, or not."""

    def grow(self, rows: int) -> None:
        for name in self.per_class:
            held = self.fields[name]
            self.fields[name] = F.pad(held, (0, rows - held.shape[-1]))

    @property
    def column_names(self) -> tuple[str, ...]:
        """What is kept of each sample."""
        return tuple(self._columns)

    @property
    def _columns(self) -> dict[str, Tensor]:
        return {"x": self.x, "y": self.y, **self.fields}

    @property
    def bytes(self) -> int:
        """What the stored samples take."""
        kept = self._columns.values()
        return self.capacity * sum(one[0].numel() * one.element_size() for one in kept)

    def write(self, slots: Tensor, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Samples into slots, all different but for the scratch row, `capacity`."""
        self.x[slots] = x
        self.y[slots] = y
        for name, values in fields.items():
            self.fields[name][slots] = values

    def draw_slots(
        self, count: int, groups: Sequence[Tensor | None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Distinct slots drawn at random, and which of them are genuine; with groups a row of slots
        for each, of samples of its classes. A group is a mask over the head's rows, or None: all
        classes that are in no other group (cheaper than a mask of its own)."""
        if groups is None:
            return draw_distinct(count, self.size, self.rng)
        counts = self._counts(groups)  # running counts of each group's samples  (groups, slots)
        last = (self.size.view(1) - 1).clamp(min=0)
        # how many samples of each group there are                               (groups)
        held = counts.index_select(1, last).squeeze(1) * (self.size > 0)
        ranks, genuine = draw_distinct(count, held, self.rng)  # the how-manieth of its group
        return nth_true(counts, ranks).clamp(max=self.capacity), genuine

    def draw_independent_slots(self, draws: int, count: int) -> tuple[Tensor, Tensor]:
        """Several draws, each of distinct slots and knowing nothing of the others, (draws, count);
        and which of them are genuine."""
        return draw_distinct(count, self.size.expand(draws), self.rng)

    def _counts(self, groups: Sequence[Tensor | None]) -> Tensor:
        """For each group, how many of its samples there are up to each slot."""
        counts = self._upto.new_empty(len(groups), len(self._upto))
        rows = list(zip(counts, groups, strict=True))
        others = [self._count(group, row) for row, group in rows if group is not None]
        for row, group in rows:
            if group is None:
                torch.sub(self._upto, reduce(torch.add, others), out=row)
        return counts

    def _count(self, group: Tensor, out: Tensor) -> Tensor:
        members = group.int().index_select(0, self.y)
        return torch.cumsum(members, 0, dtype=torch.int32, out=out)

    def samples_at(self, slots: Tensor, genuine: Tensor, fallback: Samples) -> Samples:
        """The samples in these slots, at weight 0 where they are not genuine; samples of the
        fallback at weight 0 where the first of them is not."""
        x, y = self.x.index_select(0, slots), self.y.index_select(0, slots)
        some = genuine[:1]
        if not (at_hand(some) and some.tolist() == [True]):  # else the fallback is not needed
            cycle = torch.arange(len(slots), device=slots.device) % len(fallback.y)
            y = torch.where(some, y, fallback.y.index_select(0, cycle))
            some = some.view(-1, *[1] * (x.ndim - 1))
            x = torch.where(some, x, fallback.x.index_select(0, cycle))
        return Samples(x, y, genuine.to(fallback.weight.dtype))

    def draw(self, count: int, fallback: Samples, among: Tensor | None = None) -> Samples:
        """Up to `count` distinct samples, of the classes `among`; what is missing is repeated at
        weight 0, by samples of the fallback while there is nothing to draw from."""
        slots, genuine = self.draw_slots(count, None if among is None else [among])
        return self.samples_at(slots.view(-1), genuine.view(-1), fallback)

    def forget(self, chosen: Tensor) -> None:
        """Removes the chosen of the samples that are held, a mask over their slots. Those that stay
        move to the front, so that what comes next fills the slots that are free; nothing is left of
        the others, nor of what lies behind."""
        stays = torch.nonzero(~chosen).flatten()
        for column in self._columns.values():
            staying = column.index_select(0, stays)
            column.zero_()
            column[: len(stays)] = staying  # in place, where a captured step reads it
        self.size.fill_(len(stays))

    def empty_state(self) -> dict[str, Any]:
        """What `state_dict` gives of a memory that has never held anything."""
        kept = {name: one[: self.saved_slots(0)] for name, one in self._columns.items()}
        state = {**super().state_dict(), **kept}
        return {name: torch.zeros_like(one) for name, one in state.items()}

    def saved_slots(self, size: int) -> int:
        """How many slots are saved of a memory that holds so many samples."""
        return size

    def state_dict(self) -> dict[str, Any]:
        saved = self.saved_slots(int(self.size))
        kept = {name: one[:saved].clone() for name, one in self._columns.items()}
        return {**super().state_dict(), **kept}

    def expect(self, saved: dict[str, Any], classes: int, name: str) -> None:
        """As many samples as its size says, no more than there is room for, all of known rows."""
        size = expect_number(saved.get("size"), 0, self.capacity, f"{name}.size")
        slots = self.saved_slots(size)
        kept = {name: one[:slots] for name, one in self._columns.items()}
        expect_alike(saved, {**super().state_dict(), **kept}, name)
        expect_rows(saved["y"], classes, f"{name}.y")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, one in self._columns.items():
            one[: len(state[name])] = state[name].to(one.device)

    def mark(self) -> dict[str, Tensor]:
        """Nothing: a batch is let in when the network has moved."""
        return {}
