"""The two parts of a memory of which some samples are never trained on: what is replayed, and a
small balanced set to validate with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onepass.memory.reservoir import Reservoir
from onepass.memory.store import Store


class FilteredReservoir(Reservoir):
    """A reservoir of those samples of each batch that it is told to take part."""

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """`part` (b) says which samples are offered, all if it does not; the others might as well
        not be there."""
        part = fields.pop("part", _all_true(y))
        number = part.cumsum(0)  # in the batch, of those that are offered           (b)
        self.write(self._slots(number, part), x, y, **fields)
        self._count_offered(part.sum())


class HeldOutSet(Store):
    """The first samples of each class, as many of each: capacity // classes seen. When classes
    arrive, those that are there give up what is over their new share; where there are more classes
    than places, nothing is held.

    All slots are saved, so that a state has the same size at any time.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._share = torch.zeros_like(self.size)  # of each class

    def fitting(self, y: Tensor, candidate: Tensor) -> Tensor:
        """Which of these candidates (b) of a batch have a place."""
        held = (self.y[:-1] == y.unsqueeze(1)) & self._taken()  # (b, capacity)
        same = (y.unsqueeze(1) == y) & candidate
        earlier = same.tril(diagonal=-1).sum(dim=1)  # candidates of its class before it
        return candidate & (held.sum(dim=1) + earlier < self._share)

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """`part` (b), of those that are `wanted`, says which samples are let in; without it all of
        them are."""
        part = fields.pop("part", None)
        if part is None:
            part = self.fitting(y, _all_true(y))
        slots = self.size + part.cumsum(0) - 1
        self.write(slots.masked_fill(~part, self.capacity), x, y, **fields)
        self.size += part.sum()

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self._share.copy_(self.capacity // seen.sum().clamp(min=1))
        taken, y = self._taken(), self.y[:-1]
        same = (y.unsqueeze(1) == y) & taken
        over = same.tril(diagonal=-1).sum(dim=1) >= self._share  # behind the share of its class
        stays = taken & ~over
        order = (~stays).int().argsort(stable=True)  # those that stay come first, in their order
        for column in (self.x, self.y, *self.fields.values()):
            column[:-1] = column[:-1].index_select(0, order)
        self.size.copy_(stays.sum())

    def saved_slots(self, size: int) -> int:
        return self.capacity

    def _taken(self) -> Tensor:
        return torch.arange(self.capacity, device=self.y.device) < self.size


def _all_true(y: Tensor) -> Tensor:
    return torch.ones_like(y, dtype=torch.bool)
