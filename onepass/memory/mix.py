"""Batches in which groups of classes, such as old and new ones, have chosen shares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from onepass.memory.draw import nth_true
from onepass.memory.store import Store
from onepass.parts import Samples


class Places(NamedTuple):
    """What is asked for: for each place of a batch the group, the rank within the group's line,
    and whether the place counts."""

    group: Tensor
    rank: Tensor
    counts: Tensor

    def then(self, other: Places) -> Places:
        return Places(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


class Pools:
    """For each group of classes a line of samples: those of the stream batch first, in their
    order, then up to `drawn` of the group's from the memory.

    `groups` are masks over the head's rows, one of them perhaps None for all other classes; each
    class of the stream batch is in one of them.
    """

    def __init__(
        self, store: Store, stream: Samples, groups: Sequence[Tensor | None], drawn: Sequence[int]
    ) -> None:
        slots, genuine = store.slots(max(drawn), groups)
        for line, limit in zip(genuine, drawn, strict=True):
            if limit < len(line):
                line[limit:] = False
        self.x = torch.cat([stream.x, store.x.index_select(0, slots.flatten())])
        self.y = torch.cat([stream.y, store.y.index_select(0, slots.flatten())])
        number = torch.arange(len(self.y), device=self.y.device)
        stream_part, memory_part = number[: len(stream.y)], number[len(stream.y) :]
        stream_part = stream_part.expand(len(groups), -1)
        self._index = torch.cat([stream_part, memory_part.view_as(slots)], dim=1).flatten()
        in_stream = _members(groups, stream.y)
        waiting = torch.cat([in_stream, genuine], dim=1)
        self._counts = waiting.flatten().cumsum(0)
        self.in_stream, self.length = in_stream.sum(dim=1), waiting.sum(dim=1)

    def take(self, places: Places) -> Samples:
        """The samples at these places; past the end of its line a group begins again at weight 0
        (where its line is empty, all lines together)."""
        some = self.length > 0
        cycle = torch.where(some, self.length, self.length.sum())
        before = (self.length.cumsum(0) - self.length) * some
        facts = torch.stack([self.length, cycle, before]).index_select(1, places.group)
        length, cycle, before = facts
        pick = self._index.index_select(0, nth_true(self._counts, before + places.rank % cycle))
        weight = (places.counts & (places.rank < length)).float()
        return Samples(self.x.index_select(0, pick), self.y.index_select(0, pick), weight)


def _members(groups: Sequence[Tensor | None], y: Tensor) -> Tensor:
    """Which samples belong to each group."""
    found = [None if group is None else group.index_select(0, y) for group in groups]
    others = reduce(torch.logical_or, [each for each in found if each is not None])
    return torch.stack([~others if each is None else each for each in found])


def line(group: int, first: Tensor | int, size: int, device: torch.device) -> Places:
    """`size` places for one group, from its rank `first` on."""
    place = torch.arange(size, device=device)
    everywhere = torch.ones_like(place)
    return Places(group * everywhere, first + place, everywhere > 0)


def shares(first: Tensor, second: Tensor, size: int) -> Places:
    """The first so many of group 0, then the first so many of group 1, in `size` places."""
    place = torch.arange(size, device=first.device)
    group = (place >= first).long()
    return Places(group, place - group * first, place < first + second)
