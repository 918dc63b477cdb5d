"""A memory whose draws go round the classes."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.base.devices import widest_float
from onepass.memory.fill_first import FillFirst


class RoundRobin(FillFirst):
    """A memory that draws in rounds, one sample of each class per round."""

    def round_robin_slots(self, count: int) -> Tensor:
        """Returns `count` slots in rounds: one sample of each class, then another one of each class
        that has more. The order is random within a class and within a round; free slots come
        last."""
        free = torch.arange(self.capacity, device=self.y.device) >= self.size
        uniform = torch.rand(2, self.capacity, generator=self.rng, device=self.y.device)
        labels = self.y[: self.capacity].to(widest_float(self.y.device))
        by_class = (
            labels + uniform[0]
        )  # class + uniform number: sorting groups the classes and shuffles each
        by_class, order = by_class.masked_fill(free, torch.inf).sort()
        position = torch.arange(self.capacity, device=self.y.device)
        rank = position - torch.searchsorted(by_class, by_class.floor())  # within its class
        turn = (rank + uniform[1].to(by_class.dtype)).masked_fill(by_class == torch.inf, torch.inf)
        return order.index_select(0, turn.topk(count, largest=False).indices)

    def other_slots(self, count: int, taken: Tensor) -> Tensor:
        """Returns `count` random slots that are not in `taken`."""
        uniform = torch.rand(self.capacity, generator=self.rng, device=self.y.device)
        return uniform.index_fill(0, taken, torch.inf).topk(count, largest=False).indices
