"""A memory that can draw from the classes in turn (ASER's draws)."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.base.devices import widest_float
from onepass.memory.fill_first import FillFirst


class RoundRobin(FillFirst):
    """A memory that fills its slots in order, and can draw in rounds of one sample per class."""

    def round_robin_slots(self, count: int) -> Tensor:
        """Returns `count` distinct slots in rounds: a sample of each class, then another one of
        each class that has more, and so on. The order is random within a class and within a round.
        Free slots come last, if there are fewer samples than `count`."""
        free = torch.arange(self.capacity, device=self.y.device) >= self.size
        uniform = torch.rand(2, self.capacity, generator=self.rng, device=self.y.device)
        labels = self.y[: self.capacity].to(widest_float(self.y.device))
        # class + uniform number: sorting groups the classes and shuffles each
        by_class = labels + uniform[0]
        by_class, order = by_class.masked_fill(free, torch.inf).sort()
        position = torch.arange(self.capacity, device=self.y.device)
        rank = position - torch.searchsorted(by_class, by_class.floor())  # within its class
        # round + uniform number: sorting groups the rounds and shuffles each
        turn = (rank + uniform[1].to(by_class.dtype)).masked_fill(by_class == torch.inf, torch.inf)
        return order.index_select(0, turn.topk(count, largest=False).indices)

    def other_slots(self, count: int, taken: Tensor) -> Tensor:
        """Returns `count` distinct random slots that are not in `taken`. They may be free ones. If
        too few are left, slots in `taken` come last."""
        uniform = torch.rand(self.capacity, generator=self.rng, device=self.y.device)
        return uniform.index_fill(0, taken, torch.inf).topk(count, largest=False).indices
