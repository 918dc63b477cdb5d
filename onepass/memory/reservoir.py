"""A memory of fixed capacity filled by reservoir sampling (Vitter's algorithm R, exactly)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from onepass.base.devices import is_on_host, widest_float
from onepass.base.expect import expect_number
from onepass.memory.store import Store

FEW = 4  # samples of a batch that are written faster one by one than together
MOST_OFFERED = 2**62  # below the overflow of int64


class Reservoir(Store):
    """A reservoir that keeps every offered sample with equal probability: 1 until it is full, then
    capacity / offered.

    `offered` is the number of samples offered so far. `forget` scales it down by the fraction that
    it removes. The next samples fill the free slots, and then random replacement goes on.
    """

    tensors: ClassVar[tuple[str, ...]] = ("size", "offered")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.offered = torch.zeros((), dtype=torch.int64, device=self.rng.device)

    def add(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Offers a batch. A sample takes the next free slot. If there is none, the k-th sample of
        the stream draws a random slot out of k, and is dropped if the slot is past the capacity. If
        two samples of a batch get the same slot, the later one stays, as if they had come one after
        the other."""
        if is_on_host(self.offered):
            self._add_on_host(x, y, **fields)
        else:
            number = torch.arange(1, len(y) + 1, device=y.device)
            self.write(self._slots(number), x, y, **fields)
        self._count_offered(len(y))

    def _add_on_host(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Stores the same samples in the same slots on the CPU, where reading numbers is cheap.
        Late in a stream most batches write nothing, and others a sample or two."""
        offered, size = int(self.offered), int(self.size)
        slots = (
            size + i if size + i < self.capacity else int(uniform * (offered + i + 1))
            for i, uniform in enumerate(self._uniform(len(y)).tolist())
        )
        # a later sample of the batch with the same slot overwrites an earlier one
        last = {slot: i for i, slot in enumerate(slots) if slot < self.capacity}
        if len(last) > FEW:
            accepted = torch.tensor(list(last.values()))
            kept = {name: values[accepted] for name, values in fields.items()}
            self.write(torch.tensor(list(last)), x[accepted], y[accepted], **kept)
            return
        for slot, i in last.items():
            self.x[slot], self.y[slot] = x[i], y[i]
            for name, values in fields.items():
                self.fields[name][slot] = values[i]

    def _uniform(self, count: int) -> Tensor:
        device = self.rng.device
        return torch.rand(count, generator=self.rng, device=device, dtype=widest_float(device))

    def _slots(self, number: Tensor, accept: Tensor | None = None) -> Tensor:
        """Returns the slot of each sample. `number` is its position in the batch from 1, not
        counting samples that are not accepted. Samples that are dropped, overwritten or not
        accepted get the scratch row behind the last slot, which keeps shapes static."""
        k = self.offered + number  # position in the stream                       (b)
        free = self.size + number  # k, unless `forget` removed samples           (b)
        random_slot = (self._uniform(len(k)) * k).long()
        slot = torch.where(free <= self.capacity, free - 1, random_slot)
        if accept is not None:
            slot = slot.masked_fill(~accept, self.capacity)
        # whether a later sample of this batch has the same slot                  (b)
        overwritten = (slot.unsqueeze(1) == slot).triu(diagonal=1).any(dim=1)
        return slot.masked_fill(overwritten, self.capacity).clamp(max=self.capacity)

    def _count_offered(self, more: Tensor | int) -> None:
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
