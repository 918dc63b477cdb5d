"""Batches in which the old and the new classes have chosen shares: the X^mix of GSA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onepass.base.parts import Samples
from onepass.memory.reservoir import Reservoir
from onepass.memory.sampling import nth_true

OLD, NEW = 0, 1
Shares = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def share_of_new(places: int, new: Tensor, seen: Tensor) -> Tensor:
    """N_new: the nearest whole number (halves upwards) to places |N| / |seen|, at least 1 where
    there is a new class.

    >>> [int(share_of_new(20, torch.tensor(10), torch.tensor(10 * t))) for t in (1, 2, 3, 8)]
    [20, 10, 7, 3]
    """
    return ((2 * places * new + seen) // (2 * seen)).clamp(min=1) * (new > 0)


def proportional_shares(size: int, new: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """How many of so many places are for old and for new classes, by the numbers of classes."""
    n_new = share_of_new(size, new, seen)
    return size - n_new, n_new


class MixPlan(NamedTuple):
    """What is asked for: for each place of a batch the group (old or new), the rank within the
    group's line, and whether the place counts."""

    group: Tensor
    rank: Tensor
    counts: Tensor

    def then(self, other: MixPlan) -> MixPlan:
        return MixPlan(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


class CandidateQueues:
    """Two lines of samples, one of old and one of new classes: those of the stream batch first, in
    their order, then some from the memory."""

    def __init__(self, store: Reservoir, stream: Samples, new: Tensor, drawn: tuple[int, int]):
        # old classes are all others: that is cheaper than a mask of their own
        slots, genuine = store.draw_slots(max(drawn), (None, new))  # (2, most) each
        for row, limit in zip(genuine, drawn, strict=True):
            if limit < len(row):
                row[limit:] = False
        # both lines end to end, each with the whole stream batch                (2 (b + most))
        self.x = _concatenate_queues(stream.x, store.x.index_select(0, slots.flatten()))
        self.y = _concatenate_queues(stream.y, store.y.index_select(0, slots.flatten()))
        is_new = new.index_select(0, stream.y)
        self._of_stream = torch.stack([~is_new, is_new])  # (2, b)
        waiting = torch.cat([self._of_stream, genuine], dim=1)
        self._counts = waiting.flatten().cumsum(0)  # one running count finds the n-th of either
        self.length = waiting.sum(dim=1)

    @property
    def stream_counts(self) -> Tensor:
        """How many of each line are samples of the stream batch, (2)."""
        return self._of_stream.sum(dim=1)

    def take(self, places: MixPlan) -> Samples:
        """The samples at these places; past the end of its line a group begins again at weight 0
        (where its line is empty, both lines together)."""
        some, ends = self.length > 0, self._counts.view(2, -1)[:, -1]
        cycle = torch.where(some, self.length, ends[1])
        before = (ends - self.length) * some
        facts = torch.stack([self.length, cycle, before]).index_select(1, places.group)
        length, cycle, before = facts
        pick = nth_true(self._counts, before + places.rank % cycle)
        weight = (places.counts & (places.rank < length)).float()
        return Samples(self.x.index_select(0, pick), self.y.index_select(0, pick), weight)


def _concatenate_queues(stream: Tensor, drawn: Tensor) -> Tensor:
    """Of the old line and then of the new one: what the stream has, and what was drawn for it."""
    of_old, of_new = drawn.chunk(2)
    return torch.cat([stream, of_old, stream, of_new])


class MixedReservoir(Reservoir):
    """A reservoir that is drawn from together with the stream batch, in shares.

    Parameters
    ----------
    size
        The places of a mixed batch.
    shares
        A function of the size, the number of new classes and that of all classes seen: how many
        places are for old, how many for new ones; by default, classes have the same. Asked when
        classes arrive, not in each step.
    fill
        How many samples of new classes a mixed batch may take from the memory at most.
    """

    def __init__(
        self,
        *arguments: Any,
        size: int,
        shares: Shares = proportional_shares,
        fill: int | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.size_of_mix, self.shares = size, shares
        self.fill = size if fill is None else fill
        self._places = plan_for_group(OLD, 0, size, self.rng.device)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self._new = new
        n_old, n_new = self.shares(self.size_of_mix, new.sum(), seen.sum().clamp(min=1))
        now = plan_old_then_new(n_old, n_new, self.size_of_mix)
        for held, value in zip(self._places, now, strict=True):
            held.copy_(value)  # in place, where a captured step reads it

    def mixed(self, stream: Samples) -> Samples:
        """Returns X^mix."""
        return self.queues(stream).take(self._places)

    def mixed_and_current(
        self, stream: Samples, current: int, *, from_stream: bool = False
    ) -> tuple[Samples, Samples]:
        """Returns X^mix, and `current` samples of the new classes: of the memory, or, with
        `from_stream`, those of the stream batch first. Both take the same ones of the memory."""
        queues = self.queues(stream)
        first = 0 if from_stream else queues.stream_counts[NEW]
        wanted = plan_for_group(NEW, first, current, self.rng.device).then(self._places)
        some, mix = queues.take(wanted).cut(current, self.size_of_mix)
        return mix, some

    def queues(self, stream: Samples) -> CandidateQueues:
        """Returns what a mixed batch is taken from, drawn anew."""
        return CandidateQueues(self, stream, self._new, (self.size_of_mix, self.fill))


def plan_for_group(group: int, first: Tensor | int, size: int, device: torch.device) -> MixPlan:
    """`size` places for one group, from its rank `first` on."""
    place = torch.arange(size, device=device)
    everywhere = torch.ones_like(place)
    return MixPlan(group * everywhere, first + place, everywhere > 0)


def plan_old_then_new(n_old: Tensor, n_new: Tensor, size: int) -> MixPlan:
    """The first so many of the old line, then the first so many of the new, in `size` places."""
    place = torch.arange(size, device=n_old.device)
    group = (place >= n_old).long()
    return MixPlan(group, place - group * n_old, place < n_old + n_new)
