"""A memory of fixed capacity that greedily balances its classes (GDumb's sampler)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.devices import widest_float
from onepass.base.errors import CheckpointError
from onepass.memory.sampling import nth_true
from onepass.memory.store import Store

UNKNOWN = -1  # in place of the count of a class without samples so far


class BalancedMemory(Store):
    """A memory that gives every class the same share of its capacity, as far as samples suffice.

    It takes samples one after the other. Let k be the number of classes that it knows: those that
    it has stored a sample of. It stores a sample if the class is unknown or holds fewer than
    capacity // k samples, and drops it otherwise. If the memory is full, the sample replaces a
    random one of the largest class (in a tie, the class with the first row in the head).

    With enough samples, classes that arrive one after the other fill the memory, and their counts
    differ by at most one. Classes that arrive together hold capacity // k each, and the remaining
    slots stay empty.

    `held` is the number of stored samples of each row, or -1 if the row's class is unknown.

    Parameters
    ----------
    rows
        The number of rows of the head. `held` grows with it.
    """

    tensors: ClassVar[tuple[str, ...]] = ("size", "held")

    def __init__(self, *arguments: Any, rows: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.held = torch.full((rows,), UNKNOWN, device=self.rng.device)

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Offers a batch, as if its samples came one after the other."""
        if not self.capacity:
            return
        uniform = torch.rand(
            len(y), generator=self.rng, device=y.device, dtype=widest_float(y.device)
        )
        samples = zip(torch.split(y, 1), torch.split(uniform, 1), strict=True)
        slots = torch.cat([self._choose_slot(*sample) for sample in samples])
        # only the last write to a slot counts: a device may order duplicate writes either way
        overwritten = (slots.unsqueeze(1) == slots).triu(diagonal=1).any(dim=1)
        self.write(slots.masked_fill(overwritten, self.capacity), x, y, **fields)

    def forget(self, chosen: Tensor) -> None:
        """Removes the samples where a mask over the occupied slots is true. A class that loses all
        its samples becomes unknown, and the others get its share."""
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
            raise CheckpointError(f"{name}.held does not match the counts of the stored samples")

    def _choose_slot(self, y: Tensor, uniform: Tensor) -> Tensor:
        """Returns the slot (1) of one sample, or `capacity` if it is dropped. Updates labels and
        counts, so that the next sample sees it as stored. `uniform` (1) chooses which sample it
        replaces."""
        own = self.held.index_select(0, y)
        quota = self.capacity // (self.held > UNKNOWN).sum().clamp(min=1)
        accepted = own < quota  # an unknown class (-1) is below every quota
        evicting = accepted & (self.size == self.capacity)

        # the sample to replace: a random one of the largest class
        most, largest = self.held.max(dim=0, keepdim=True)
        members = (self.y[: self.capacity] == largest).cumsum(0)
        victim = nth_true(members, (uniform * most).long())
        slot = torch.where(evicting, victim, self.size).masked_fill(~accepted, self.capacity)

        # `add` writes the samples themselves, once for the whole batch
        self.y.index_copy_(0, slot, y)
        self.held.index_copy_(0, y, torch.where(accepted, own.clamp(min=0) + 1, own))
        self.held.index_add_(0, largest, evicting.long(), alpha=-1)
        self.size += (accepted & ~evicting).sum()
        return slot
