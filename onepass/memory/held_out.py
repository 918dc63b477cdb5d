"""The two memories of a method that holds out validation samples. `FilteredReservoir` holds samples
to replay, and `HeldOutSet` a small balanced set that is never replayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onepass.memory.reservoir import Reservoir
from onepass.memory.store import Store


class FilteredReservoir(Reservoir):
    """A reservoir that takes a mask of the samples of a batch to offer; it ignores the others."""

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Offers the samples where the mask `accept` (b) is true, or all of them without a mask.
        Offered samples may still be dropped, as in any reservoir."""
        accept = fields.pop("accept", _all_true(y))
        number = accept.cumsum(0)  # position among the offered samples, from 1       (b)
        self.write(self._slots(number, accept), x, y, **fields)
        self._count_offered(accept.sum())


class HeldOutSet(Store):
    """A memory of the first samples of each class, at most capacity // k of each, where k is the
    number of classes seen.

    When new classes arrive, the share of each class shrinks, and the latest samples above it are
    dropped. With more classes than slots the memory holds nothing. A saved state has all slots, so
    that it always has the same size.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._share = torch.zeros_like(self.size)  # the most samples of one class

    def fitting(self, y: Tensor, candidate: Tensor) -> Tensor:
        """Returns a mask (b) of the samples to store. They are those in the mask `candidate` (b)
        for which the share of their class has room, the first in the batch first."""
        # stored samples of each sample's class                         (b, capacity)
        held = (self.y[:-1] == y.unsqueeze(1)) & self._taken()
        # candidates of each sample's class in this batch               (b, b)
        same = (y.unsqueeze(1) == y) & candidate
        earlier = same.tril(diagonal=-1).sum(dim=1)  # those earlier in the batch
        return candidate & (held.sum(dim=1) + earlier < self._share)

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Stores the samples where the mask `accept` (b) is true, which must be a result of
        `fitting`. Without a mask it stores all samples that fit."""
        accept = fields.pop("accept", None)
        if accept is None:
            accept = self.fitting(y, _all_true(y))
        slots = self.size + accept.cumsum(0) - 1
        self.write(slots.masked_fill(~accept, self.capacity), x, y, **fields)
        self.size += accept.sum()

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self._share.copy_(self.capacity // seen.sum().clamp(min=1))
        taken, y = self._taken(), self.y[:-1]
        same = (y.unsqueeze(1) == y) & taken
        over = same.tril(diagonal=-1).sum(dim=1) >= self._share  # past its class's share
        stays = taken & ~over
        # kept samples move to the front, in their order
        order = (~stays).int().argsort(stable=True)
        for column in (self.x, self.y, *self.fields.values()):
            column[:-1] = column[:-1].index_select(0, order)
        self.size.copy_(stays.sum())

    def saved_slots(self, size: int) -> int:
        return self.capacity

    def _taken(self) -> Tensor:
        return torch.arange(self.capacity, device=self.y.device) < self.size


def _all_true(y: Tensor) -> Tensor:
    return torch.ones_like(y, dtype=torch.bool)
