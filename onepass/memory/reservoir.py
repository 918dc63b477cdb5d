"""A memory of fixed capacity filled by reservoir sampling (Vitter's algorithm R, exactly)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from onepass.compare import expect_number
from onepass.devices import at_hand, finest
from onepass.memory.store import Store

MOST_OFFERED = 2**62  # below what a whole number can count to


class Reservoir(Store):
    """Every sample offered so far is held with the same probability, capacity / offered."""

    tensors: ClassVar[tuple[str, ...]] = ("size", "offered")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.offered = torch.zeros((), dtype=torch.int64, device=self.rng.device)

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """The k-th sample of the stream goes to a random one of k places; those past the capacity
        do not exist. Of two samples of a batch for one place the later stays, as if they had come
        one by one."""
        if at_hand(self.offered):
            self._add_one_by_one(x, y, **fields)
        else:
            # each sample's number in the stream, from 1                          (b)
            k = self.offered + torch.arange(1, len(y) + 1, device=y.device)
            self.write(self._slots(k), x, y, **fields)
        self._have_offered(len(y))

    def _add_one_by_one(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """The same where numbers can be looked at: most samples of a long stream are not let in."""
        uniform = enumerate(self._uniform(len(y)).tolist(), int(self.offered) + 1)
        places = (k - 1 if k <= self.capacity else int(one * k) for k, one in uniform)
        last = {place: i for i, place in enumerate(places) if place < self.capacity}
        for place, i in last.items():
            self.x[place], self.y[place] = x[i], y[i]
            for name, values in fields.items():
                self.fields[name][place] = values[i]

    def _uniform(self, count: int) -> Tensor:
        device = self.rng.device
        return torch.rand(count, generator=self.rng, device=device, dtype=finest(device))

    def _slots(self, k: Tensor, part: Tensor | None = None) -> Tensor:
        """Where the samples with these numbers go; who is not let in, or takes no part, is written
        to the scratch row, so that shapes stay."""
        place = torch.where(k <= self.capacity, k - 1, (self._uniform(len(k)) * k).long())
        if part is not None:
            place = place.masked_fill(~part, self.capacity)
        # a later sample of this batch goes to the same place                     (b)
        overwritten = (place.unsqueeze(1) == place).triu(diagonal=1).any(dim=1)
        return place.masked_fill(overwritten, self.capacity).clamp(max=self.capacity)

    def _have_offered(self, more: Tensor | int) -> None:
        self.offered += more
        torch.clamp(self.offered, max=self.capacity, out=self.size)

    def expect(self, saved: dict[str, Any], classes: int, name: str) -> None:
        super().expect(saved, classes, name)
        offered = expect_number(saved["offered"], 0, MOST_OFFERED, f"{name}.offered")
        size = min(offered, self.capacity)
        expect_number(saved["size"], size, size, f"{name}.size")
