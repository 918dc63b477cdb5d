"""A memory of fixed capacity filled by reservoir sampling (Vitter's algorithm R, exactly)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from onepass.base.devices import at_hand, finest
from onepass.base.expect import expect_number
from onepass.memory.store import Store

MOST_OFFERED = 2**62  # below what a whole number can count to


class Reservoir(Store):
    """Every sample offered so far is held with the same probability, capacity / offered.

    If samples are forgotten, those that stay stand for their share of what was offered; whoever
    comes next fills the free slots, and from there on all goes on by lot.
    """

    tensors: ClassVar[tuple[str, ...]] = ("size", "offered")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.offered = torch.zeros((), dtype=torch.int64, device=self.rng.device)

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """The k-th sample of the stream goes to a random one of k places; those past the capacity
        do not exist. Of two samples of a batch for one place the later stays, as if they had come
        one by one."""
        if at_hand(self.offered):
            self._add_those_let_in(x, y, **fields)
        else:
            number = torch.arange(1, len(y) + 1, device=y.device)
            self.write(self._slots(number), x, y, **fields)
        self._have_offered(len(y))

    def _add_those_let_in(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """The same where numbers can be looked at: most batches of a long stream bring nothing, the
        others a sample or two, which are written faster one by one."""
        offered, size = int(self.offered), int(self.size)
        places = (
            size + i if size + i < self.capacity else int(uniform * (offered + i + 1))
            for i, uniform in enumerate(self._uniform(len(y)).tolist())
        )
        last = {place: i for i, place in enumerate(places) if place < self.capacity}
        for place, i in last.items():
            self.x[place], self.y[place] = x[i], y[i]
            for name, values in fields.items():
                self.fields[name][place] = values[i]

    def _uniform(self, count: int) -> Tensor:
        device = self.rng.device
        return torch.rand(count, generator=self.rng, device=device, dtype=finest(device))

    def _slots(self, number: Tensor, part: Tensor | None = None) -> Tensor:
        """Where the samples with these numbers in the batch, from 1, go; who is not let in, or
        takes no part, is written to the scratch row, so that shapes stay."""
        k = self.offered + number  # in the stream                                (b)
        free = self.size + number  # k, unless some were forgotten                (b)
        by_lot = (self._uniform(len(k)) * k).long()
        place = torch.where(free <= self.capacity, free - 1, by_lot)
        if part is not None:
            place = place.masked_fill(~part, self.capacity)
        # a later sample of this batch goes to the same place                     (b)
        overwritten = (place.unsqueeze(1) == place).triu(diagonal=1).any(dim=1)
        return place.masked_fill(overwritten, self.capacity).clamp(max=self.capacity)

    def _have_offered(self, more: Tensor | int) -> None:
        self.offered += more
        self.size += more
        self.size.clamp_(max=self.capacity)

    def forget(self, chosen: Tensor) -> None:
        held = len(chosen)
        super().forget(chosen)
        if held:
            self.offered.fill_(int(self.offered) * int(self.size) // held)

    def expect(self, saved: dict[str, Any], classes: int, name: str) -> None:
        super().expect(saved, classes, name)
        offered = expect_number(saved["offered"], 0, MOST_OFFERED, f"{name}.offered")
        expect_number(saved["size"], 0, min(offered, self.capacity), f"{name}.size")
