"""A memory that stores samples until it is full. After that only the method overwrites samples."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.memory.store import Store


class FillFirst(Store):
    """A memory that fills its free slots in order and drops samples when it is full."""

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        # samples past the last slot go to the scratch row, which holds no sample
        slots = self.size + torch.arange(len(y), device=y.device)
        self.write(slots.clamp(max=self.capacity), x, y, **fields)
        self.size.copy_((self.size + len(y)).clamp(max=self.capacity))
