"""A memory of fixed capacity filled by reservoir sampling (Vitter's algorithm R, exactly)."""

from __future__ import annotations

from collections.abc import Sequence
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
        k = self.seen + torch.arange(1, len(y) + 1, device=y.device)
        uniform = torch.rand(len(y), generator=self.source, device=y.device, dtype=torch.float64)
        place = torch.where(k <= self.capacity, k - 1, (uniform * k).long())
        overwritten = (place.unsqueeze(1) == place).triu(diagonal=1).any(dim=1)
        slot = place.masked_fill(overwritten, self.capacity).clamp(max=self.capacity)
        self.x[slot] = x
        self.y[slot] = y
        self.seen += len(y)

    def slots(self, count: int, groups: Sequence[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Distinct slots drawn at random, and which of them are genuine; with groups (masks over
        the head's rows) a row of slots for each, of samples of its classes."""
        if groups is None:
            return distinct(count, self.size, self.source)
        counts = [group.int().index_select(0, self.y).cumsum(0) for group in groups]
        size = self.size.view(1)
        last = (size - 1).clamp(min=0)
        held = torch.cat([each.index_select(0, last) for each in counts]) * (size > 0)
        ranks, genuine = distinct(count, held, self.source)
        slots = [nth_true(each, rank) for each, rank in zip(counts, ranks, strict=True)]
        return torch.stack(slots), genuine

    def draw(self, count: int, fallback: Samples, among: Tensor | None = None) -> Samples:
        """Up to `count` distinct samples, of the classes `among`; what is missing is repeated at
        weight 0, by samples of the fallback while there is nothing to draw from."""
        slots, genuine = self.slots(count, None if among is None else [among])
        slots, genuine = slots.view(-1), genuine.view(-1)
        cycle = torch.arange(count, device=slots.device) % len(fallback.y)
        some = genuine[:1]
        y = torch.where(some, self.y.index_select(0, slots), fallback.y.index_select(0, cycle))
        some = some.view(-1, *[1] * (self.x.ndim - 1))
        x = torch.where(some, self.x.index_select(0, slots), fallback.x.index_select(0, cycle))
        return Samples(x, y, genuine.to(fallback.weight.dtype))

    def state_dict(self) -> dict[str, Any]:
        held = min(int(self.seen), self.capacity)
        return {**super().state_dict(), "x": self.x[:held].clone(), "y": self.y[:held].clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        held = len(state["y"])
        self.x[:held] = state["x"].to(self.x.device)
        self.y[:held] = state["y"].to(self.y.device)
