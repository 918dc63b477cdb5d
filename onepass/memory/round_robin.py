"""A memory that is drawn from evenly over the classes."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.base.devices import finest
from onepass.memory.fill_first import FillFirst


class RoundRobin(FillFirst):
    """Deals samples out in rounds, one of each class."""

    def round_robin_slots(self, count: int) -> Tensor:
        """So many slots in rounds: one of each class, then another of each that has more. Random
        within a class and within a round; free slots come last."""
        free = torch.arange(self.capacity, device=self.y.device) >= self.size
        uniform = torch.rand(2, self.capacity, generator=self.rng, device=self.y.device)
        labels = self.y[: self.capacity].to(finest(self.y.device))
        by_class = labels + uniform[0]  # a double holds both exactly
        by_class, order = by_class.masked_fill(free, torch.inf).sort()
        place = torch.arange(self.capacity, device=self.y.device)
        rank = place - torch.searchsorted(by_class, by_class.floor())  # within its class
        turn = (rank + uniform[1].to(by_class.dtype)).masked_fill(by_class == torch.inf, torch.inf)
        return order.index_select(0, turn.topk(count, largest=False).indices)

    def other_slots(self, count: int, taken: Tensor) -> Tensor:
        """So many random slots that are not taken."""
        uniform = torch.rand(self.capacity, generator=self.rng, device=self.y.device)
        return uniform.index_fill(0, taken, torch.inf).topk(count, largest=False).indices
