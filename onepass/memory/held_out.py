"""The two halves of a memory that holds out validation samples: a reservoir to replay, and a small
balanced set that is never trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onepass.memory.reservoir import Reservoir
from onepass.memory.store import Store


class FilteredReservoir(Reservoir):
    """A reservoir that is offered only some samples of each batch."""

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Offers the samples where the mask `accept` (b) is true; all of them without a mask."""
        accept = fields.pop("accept", _all_true(y))
        number = accept.cumsum(0)  # among the offered samples of the batch, from 1   (b)
        self.write(self._slots(number, accept), x, y, **fields)
        self._count_offered(accept.sum())


class HeldOutSet(Store):
    """A memory of the first samples of each class, at most capacity // classes seen of each.

    When classes arrive, the others drop the samples above their new share. With more classes than
    slots it holds nothing. It saves all slots, so that its state always has the same size.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._share = torch.zeros_like(self.size)  # the most samples of a class

    def fitting(self, y: Tensor, candidate: Tensor) -> Tensor:
        """Returns a mask (b) of the candidates that the shares of their classes admit."""
        held = (self.y[:-1] == y.unsqueeze(1)) & self._taken()  # (b, capacity)
        # (b, b): the other candidates of a sample's class in this batch
        same = (y.unsqueeze(1) == y) & candidate
        earlier = same.tril(diagonal=-1).sum(dim=1)  # earlier candidates of its class
        return candidate & (held.sum(dim=1) + earlier < self._share)

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Stores the samples where the mask `accept` (b) is true, which must all be `fitting`.
        Without a mask it stores all fitting ones."""
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
        over = same.tril(diagonal=-1).sum(dim=1) >= self._share  # above the share of its class
        stays = taken & ~over
        order = (
            (~stays).int().argsort(stable=True)
        )  # kept samples move to the front, in their order
        for column in (self.x, self.y, *self.fields.values()):
            column[:-1] = column[:-1].index_select(0, order)
        self.size.copy_(stays.sum())

    def saved_slots(self, size: int) -> int:
        return self.capacity

    def _taken(self) -> Tensor:
        return torch.arange(self.capacity, device=self.y.device) < self.size


def _all_true(y: Tensor) -> Tensor:
    return torch.ones_like(y, dtype=torch.bool)
