"""A memory of fixed capacity that is kept balanced over classes, greedily (GDumb's sampler)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.devices import finest
from onepass.base.errors import CheckpointError
from onepass.memory.sampling import nth_true
from onepass.memory.store import Store

UNKNOWN = -1


class BalancedMemory(Store):
    """Every class has the same share of the capacity, as far as its samples go.

    One sample after the other; k classes are known before it comes. It is let in if its class is
    not known or holds fewer than capacity // k samples. If the memory is full, a random sample of
    the largest class (of equals, the one with the first row) has to go for it.

    With samples enough, classes that came one after the other fill the memory and differ by at
    most one; of classes that came together each has capacity // k, and the rest stays empty.

    Parameters
    ----------
    rows
        How many rows the head has; the memory grows with it.
    """

    tensors: ClassVar[tuple[str, ...]] = ("size", "held")

    def __init__(self, *arguments: Any, rows: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.held = torch.full((rows,), UNKNOWN, device=self.rng.device)

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Lets in samples of the stream as if they had come one by one."""
        if not self.capacity:
            return
        uniform = torch.rand(len(y), generator=self.rng, device=y.device, dtype=finest(y.device))
        one_by_one = zip(torch.split(y, 1), torch.split(uniform, 1), strict=True)
        slots = torch.cat([self._choose_slot(*one) for one in one_by_one])
        overwritten = (slots.unsqueeze(1) == slots).triu(diagonal=1).any(dim=1)
        self.write(slots.masked_fill(overwritten, self.capacity), x, y, **fields)

    def forget(self, chosen: Tensor) -> None:
        """A class of which nothing is left is unknown again: its share goes to the others."""
        super().forget(chosen)
        counts = torch.bincount(self.y[: int(self.size)], minlength=len(self.held))
        self.held.copy_(counts.masked_fill(counts == 0, UNKNOWN))

    def empty_state(self) -> dict[str, Any]:
        return {**super().empty_state(), "held": torch.full_like(self.held, UNKNOWN)}

    def grow(self, rows: int) -> None:
        super().grow(rows)
        self.held = F.pad(self.held, (0, rows - len(self.held)), value=UNKNOWN)

    def expect(self, saved: dict[str, Any], classes: int, name: str) -> None:
        super().expect(saved, classes, name)
        held = saved["held"]
        counts = torch.bincount(saved["y"], minlength=len(held))
        if bool((held < UNKNOWN).any()) or not torch.equal(held.clamp(min=0), counts):
            raise CheckpointError(f"{name}.held does not count the samples that are there")

    def _choose_slot(self, y: Tensor, uniform: Tensor) -> Tensor:
        """The slot of one sample, `capacity` if it is not let in; the books are kept as if it were
        there, so that the next one can follow."""
        own = self.held.index_select(0, y)
        quota = self.capacity // (self.held > UNKNOWN).sum().clamp(min=1)
        accepted = own < quota  # an unknown class is below any quota
        evicting = accepted & (self.size == self.capacity)

        # who has to go: a random sample of the class that holds most
        most, largest = self.held.max(dim=0, keepdim=True)
        members = (self.y[: self.capacity] == largest).cumsum(0)
        victim = nth_true(members, (uniform * most).long())
        slot = torch.where(evicting, victim, self.size).masked_fill(~accepted, self.capacity)

        # only labels and counts now: `add` writes the samples themselves, once for the whole batch
        self.y.index_copy_(0, slot, y)
        self.held.index_copy_(0, y, torch.where(accepted, own.clamp(min=0) + 1, own))
        self.held.index_add_(0, largest, evicting.long(), alpha=-1)
        self.size += (accepted & ~evicting).sum()
        return slot
