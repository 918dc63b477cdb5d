"""Batches that mix samples of old and new classes in chosen shares: X^mix in the GSA paper.

New classes arrived after the last task boundary, old classes before it. A step has two queues of
samples, one of old and one of new classes. A plan determines the queue of each sample of the batch,
and its rank there. The plan of X^mix changes only when classes arrive, in place on the device, so
that a step needs no host synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onepass.base.parts import Samples
from onepass.memory.reservoir import Reservoir
from onepass.memory.sampling import nth_true

OLD, NEW = 0, 1  # the queues, and the groups of a plan
Shares = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def share_of_new(size: int, new: Tensor, seen: Tensor) -> Tensor:
    """Returns the number of samples of new classes: size new / seen, rounded (halves up). It is at
    least 1 if a class is new, and 0 if none is.

    >>> [int(share_of_new(20, torch.tensor(10), torch.tensor(10 * t))) for t in (1, 2, 3, 8)]
    [20, 10, 7, 3]
    """
    # floor(size new / seen + 1/2) in integers
    return ((2 * size * new + seen) // (2 * seen)).clamp(min=1) * (new > 0)


def proportional_shares(size: int, new: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how many of `size` samples are of old and of new classes, if every class has the same
    share."""
    n_new = share_of_new(size, new, seen)
    return size - n_new, n_new


class MixPlan(NamedTuple):
    """The plan of a batch: the group (old or new) of each sample, its rank in the group's queue
    from 0, and whether it counts (otherwise its weight is 0), (n) each."""

    group: Tensor
    rank: Tensor
    counts: Tensor

    def then(self, other: MixPlan) -> MixPlan:
        """Returns the plan of this batch followed by another one."""
        return MixPlan(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


class OldAndNewQueues:
    """Two queues of samples, one of old and one of new classes. Each holds its samples of the
    stream batch first, in their order, and then random ones from the memory. `drawn` is the most
    samples that each queue takes from the memory."""

    def __init__(self, store: Reservoir, stream: Samples, new: Tensor, drawn: tuple[int, int]):
        # None: all classes that are not new, which is cheaper than a mask of old classes
        slots, genuine = store.draw_slots(max(drawn), (None, new))  # (2, most) each
        for row, limit in zip(genuine, drawn, strict=True):
            if limit < len(row):
                row[limit:] = False
        # Both queues lie one after the other. Each has the whole stream batch, so that shapes are
        # static, and a mask marks the samples that are in the queue.          2 (b + most) samples
        self.x = _concatenate_queues(stream.x, store.x.index_select(0, slots.flatten()))
        self.y = _concatenate_queues(stream.y, store.y.index_select(0, slots.flatten()))
        # masks of each queue's samples among those of the stream batch
        is_new = new.index_select(0, stream.y)
        self._of_stream = torch.stack([~is_new, is_new])  # (2, b)
        in_queue = torch.cat([self._of_stream, genuine], dim=1)
        self._counts = in_queue.flatten().cumsum(0)  # one cumulative sum ranks both queues
        self.length = in_queue.sum(dim=1)

    @property
    def stream_counts(self) -> Tensor:
        """The number of samples in each queue that come from the stream batch, (2)."""
        return self._of_stream.sum(dim=1)

    def take(self, plan: MixPlan) -> Samples:
        """Returns the samples of a plan. A rank past the end of its queue starts again at the
        front, with weight 0. If the queue is empty, it goes round both queues, with weight 0."""
        # `before`: the samples in front of the group's queue; `cycle`: the length to wrap ranks at
        some, ends = self.length > 0, self._counts.view(2, -1)[:, -1]
        cycle = torch.where(some, self.length, ends[1])
        before = (ends - self.length) * some
        stacked = torch.stack([self.length, cycle, before]).index_select(1, plan.group)
        length, cycle, before = stacked
        pick = nth_true(self._counts, before + plan.rank % cycle)
        weight = (plan.counts & (plan.rank < length)).float()
        return Samples(self.x.index_select(0, pick), self.y.index_select(0, pick), weight)


def _concatenate_queues(stream: Tensor, drawn: Tensor) -> Tensor:
    """Returns the old queue and then the new one. Each is the stream batch and then its half of
    `drawn`."""
    of_old, of_new = drawn.chunk(2)
    return torch.cat([stream, of_old, stream, of_new])


class MixedReservoir(Reservoir):
    """A reservoir that mixes its samples with the stream batch in chosen shares.

    Parameters
    ----------
    size
        The number of samples of a mixed batch.
    shares
        A function of the size, the number of new classes and the number of classes seen. It returns
        how many samples are of old and of new classes. By default all classes have equal shares. It
        is called when classes arrive, not in each step.
    fill
        The most samples of new classes to take from the memory; by default `size`.
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
        self._plan = plan_for_group(OLD, 0, size, self.rng.device)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self._new = new
        n_old, n_new = self.shares(self.size_of_mix, new.sum(), seen.sum().clamp(min=1))
        now = plan_old_then_new(n_old, n_new, self.size_of_mix)
        for column, value in zip(self._plan, now, strict=True):
            column.copy_(value)  # in place, because a captured step reads these tensors

    def mixed(self, stream: Samples) -> Samples:
        """Returns X^mix, the mixed batch: samples of old classes, then of new ones."""
        return self.queues(stream).take(self._plan)

    def mixed_and_current(
        self, stream: Samples, current: int, *, from_stream: bool = False
    ) -> tuple[Samples, Samples]:
        """Returns X^mix and `current` samples of new classes. These are from the memory; with
        `from_stream`, those of the stream batch come first. Both results use the same draw from the
        memory, so a sample may be in both."""
        queues = self.queues(stream)
        # the queue begins with the stream's samples, so a later first rank skips them
        first = 0 if from_stream else queues.stream_counts[NEW]
        plan = plan_for_group(NEW, first, current, self.rng.device).then(self._plan)
        current_samples, mix = queues.take(plan).cut(current, self.size_of_mix)
        return mix, current_samples

    def queues(self, stream: Samples) -> OldAndNewQueues:
        """Returns the queues of a step, with a fresh draw from the memory."""
        return OldAndNewQueues(self, stream, self._new, (self.size_of_mix, self.fill))


def plan_for_group(group: int, first: Tensor | int, size: int, device: torch.device) -> MixPlan:
    """Returns a plan of `size` samples of one group, from rank `first` of its queue on."""
    position = torch.arange(size, device=device)
    everywhere = torch.ones_like(position)
    return MixPlan(group * everywhere, first + position, everywhere > 0)


def plan_old_then_new(n_old: Tensor, n_new: Tensor, size: int) -> MixPlan:
    """Returns a plan of `size` samples: the first `n_old` of the old queue, then the first `n_new`
    of the new one. If there are fewer than `size`, the rest does not count."""
    position = torch.arange(size, device=n_old.device)
    group = (position >= n_old).long()
    return MixPlan(group, position - group * n_old, position < n_old + n_new)
