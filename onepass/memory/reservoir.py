"""A memory of fixed capacity filled by reservoir sampling (Vitter's algorithm R, exactly)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from onepass.errors import InputError
from onepass.memory.draw import distinct, nth_true
from onepass.parts import Part, Samples


class Reservoir(Part):
    """Every sample seen so far is held with the same probability, capacity / seen.

    Samples are stored raw, as copies. Adding and drawing take only device operations of static
    shape; a sample that is not admitted is written to a scratch row behind the last slot.
    """

    tensors: ClassVar[tuple[str, ...]] = ("seen",)

    def __init__(
        self,
        capacity: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        source: torch.Generator,
    ) -> None:
        self.capacity = capacity
        self.source = source
        try:
            self.x = torch.zeros(capacity + 1, *shape, dtype=dtype, device=source.device)
        except (RuntimeError, MemoryError):
            raise InputError(f"there is no room here for a memory of {capacity} samples") from None
        self.y = torch.zeros(capacity + 1, dtype=torch.int64, device=source.device)
        self.seen = torch.zeros((), dtype=torch.int64, device=source.device)
        self._slots = torch.arange(capacity + 1, device=source.device)

    @property
    def size(self) -> Tensor:
        return self.seen.clamp(max=self.capacity)

    @property
    def bytes(self) -> int:
        """What the stored samples take."""
        per_sample = self.x[0].numel() * self.x.element_size() + self.y.element_size()
        return self.capacity * per_sample

    def add(self, x: Tensor, y: Tensor) -> None:
        """The k-th sample of the stream goes to a random one of k places; those past the capacity
        do not exist. Of two samples of a batch for one place the later stays, as if they had come
        one by one."""
        count = len(y)
        order = torch.arange(count, device=y.device)
        k = self.seen + order + 1
        uniform = torch.rand(count, generator=self.source, device=y.device, dtype=torch.float64)
        place = torch.where(k <= self.capacity, k - 1, (uniform * k).long())
        overwritten = (place.unsqueeze(1) == place) & (order.unsqueeze(1) < order)
        admitted = (place < self.capacity) & ~overwritten.any(dim=1)
        slot = torch.where(admitted, place, self.capacity)
        self.x[slot] = x
        self.y[slot] = y
        self.seen += count

    def slots(self, count: int, among: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Distinct slots drawn at random, and which of them are genuine; `among` is a mask over the
        head's rows that restricts the draw to some classes."""
        if among is None:
            return distinct(count, self.size, self.source)
        eligible = among.index_select(0, self.y) & (self._slots < self.size)
        ranks, genuine = distinct(count, eligible.sum(), self.source)
        return nth_true(eligible, ranks), genuine

    def draw(self, count: int, fallback: Samples, among: Tensor | None = None) -> Samples:
        """Up to `count` distinct samples; what is missing is repeated at weight 0, by samples of
        the fallback while there is nothing to draw from."""
        slots, genuine = self.slots(count, among)
        place = torch.arange(count, device=slots.device)
        pick = torch.where(genuine.any(), place, count + place % len(fallback.y))
        x = torch.cat([self.x.index_select(0, slots), fallback.x]).index_select(0, pick)
        y = torch.cat([self.y.index_select(0, slots), fallback.y]).index_select(0, pick)
        return Samples(x, y, genuine.to(fallback.weight.dtype))

    def state_dict(self) -> dict[str, Any]:
        held = min(int(self.seen), self.capacity)
        return {**super().state_dict(), "x": self.x[:held].clone(), "y": self.y[:held].clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        held = len(state["y"])
        self.x[:held] = state["x"].to(self.x.device)
        self.y[:held] = state["y"].to(self.y.device)
