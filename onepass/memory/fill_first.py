"""A memory that takes what comes until it is full; what is overwritten then, the method decides."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.memory.store import Store


class FillFirst(Store):
    """Samples go to the free slots in their order; those for which there is none are dropped."""

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        slots = self.size + torch.arange(len(y), device=y.device)
        self.write(slots.clamp(max=self.capacity), x, y, **fields)
        self.size.copy_((self.size + len(y)).clamp(max=self.capacity))
