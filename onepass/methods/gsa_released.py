"""GSA as its published script computes it. The script does not implement the paper's equations.

Paper: that of `gsa` (Guo, Liu, Zhao, CVPR 2023). The script is in the authors' repository
gydpku/GSA (CIFAR100 only). N are the classes that are new since the last boundary, O the older
ones. X^new are the samples of N in the stream batch. cur are up to 22 samples of N from the memory.
X^mix has int(64 |O| / |seen|) samples of O and the first int(64 |N| / |seen|) samples of [X^new;
cur]. Every image is also trained as its mirror image:

    L = 2 E_{X^mix} [ -w_y log softmax_{seen}(o)_y ] + E_{[X^new; cur]} -log softmax_N(o)_y
    w_c = 2 / (1 + exp(1 - r_c)),  r_c = |S-(c)| / S+(c) over X^mix of all tasks

S+ and S- are the sums of gradients in `functional.imbalance`. There is no T2, no T3 and no v of
`gsa`. w grows with the inverse of the paper's ratio (1 in balance, range 0.54 … 2). It is 1 during
the first five batches of a task. The images of [X^new; cur] are augmented twice and those of X^mix
once, in separate forward passes. The script never registers the head with the optimiser after the
first task, hence `head="frozen"`. X^mix is not trained while the memory is empty.

The script makes six forward passes in a step and uses the outputs of two. The other four only move
BatchNorm's running statistics. Three of them see raw images, as prediction does. This file makes
these passes too (`extra_forwards`).

Departures from the script: the softmax runs over the classes seen so far, not over all classes of
the task. The reservoir keeps every sample with exactly equal probability. The loss uses log-softmax
instead of the logarithm of a softmax. A class without gradients has w = 1. In the first task and in
the first steps of others, X^mix or [X^new; cur] may not be full. Its samples are then repeated at
weight 0, and BatchNorm sees them.
Agreement: on CIFAR100 with M=1000 and three seeds, the script's mean accuracy after each of the ten
tasks lies within 1.5 points or two standard deviations of this file's (results/gsa-released.md).
Cost: 2 (batch + cur + mix) images, forward and backward, and 2 batch + cur + 3 mix forward only.
Kept: raw samples and labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from onepass.base.parts import ImageCount, Output, Samples, Step
from onepass.base.settings import require
from onepass.functional.imbalance import Balance
from onepass.functional.losses import cross_entropy, mean, sample_cross_entropy
from onepass.learning.registry import method
from onepass.learning.replay import WithMemory
from onepass.memory import MixedReservoir


def released_weight(positive: Tensor, negative: Tensor) -> Tensor:
    """Returns w = 2 / (1 + exp(1 - |S-| / S+)); 1 for a class without gradients.

    >>> ratio = torch.tensor([0.0, 0.5, 1.0, 2.0, 5.0])
    >>> released_weight(torch.ones(5), -ratio)
    tensor([0.5379, 0.7551, 1.0000, 1.4621, 1.9640])
    """
    w = 2 / (1 + torch.exp(1 - negative.abs() / positive))
    return torch.where((positive == 0) & (negative == 0), 1.0, w)


def released_shares(size: int, new: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the numbers of old and of new samples in X^mix. Both are rounded down, so one slot
    may stay empty."""
    return size * (seen - new) // seen, size * new // seen


@method(
    "gsa-released",
    paper="Guo et al., the published script of the CVPR paper",
    year=2023,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class GSAReleased(WithMemory):
    """GSA by the published script.

    Parameters
    ----------
    memory
        Number of samples in the memory.
    mix
        Size of X^mix.
    current
        Maximum number of samples of the new classes that join X^new from the memory.
    warm_up
        Number of batches at the start of each task during which every w is 1, in all their
        `repeats`.
    extra_forwards
        Whether to make the script's four further forward passes, for BatchNorm's running
        statistics.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.GSAReleased(memory=100, seed=0), stream)
    >>> last.accuracy > 60
    True
    """

    head: Literal["trained", "frozen"] = "frozen"
    mirror: bool = True
    mix: int = 64
    current: int = 22
    warm_up: int = 5
    extra_forwards: bool = True

    store: MixedReservoir = field(init=False)
    balance: Balance = field(init=False)

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "mix", self.mix >= 2, "at least 2")
        require(self, "current", self.current >= 1, "at least 1")
        require(self, "warm_up", self.warm_up >= 0, "zero or more")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().build(shape, dtype)
        self.balance = Balance(len(self.seen), self.trainer.torch_device)

    def make_store(
        self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator
    ) -> MixedReservoir:
        return MixedReservoir(
            self.memory, shape, dtype, rng, size=self.mix, shares=released_shares, fill=self.current
        )

    def cost(self, batch: int) -> ImageCount:
        trained = batch + self.current + self.mix
        raw = batch + self.current + self.mix + batch + self.mix * self.views_per_sample
        return ImageCount(trained * self.views_per_sample, scored=raw * self.extra_forwards)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new           (b)
        size = len(y) + self.current
        # X^mix (m) and [X^new; cur] (b + cur)
        mix, current = self.store.mixed_and_current(stream, size, from_stream=True)
        mix = mix._replace(weight=mix.weight * (self.store.size > 0))  # empty memory: no X^mix

        # as in the script: these images are augmented twice, those of X^mix once
        twice = self.views.augmented(self.views(current.x))
        stream_out = self.trainer.output(self.model.train_forward(twice), current, lambda: twice)
        self.trainer.record_forward([stream_out], [current])
        # the order of forward passes is the script's: BatchNorm's statistics depend on it
        self.update_statistics(self.new_samples_of_mix(mix.x, size))
        self.update_statistics(mix.x)
        (mix_out,) = self.forward(mix)  # logits  (m, C)
        self.update_statistics_again(mix_out)
        self.update_statistics(x)
        stream_loss = cross_entropy(stream_out, among=self.new)
        self.balance.update((mix_out,), self.seen)  # S+ and S- over X^mix of all tasks
        each = sample_cross_entropy(mix_out, among=self.seen)
        mix_loss = mean(self.weight()[mix_out.y] * each, mix_out.weight)
        loss = 2 * mix_loss + stream_loss

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, stream_out, mix_out, mix=mix_loss, stream=stream_loss)

    @torch.no_grad()
    def update_statistics(self, x: Tensor) -> None:
        """Forwards raw images in training mode, only to move BatchNorm's running statistics."""
        if self.extra_forwards:
            self.model.train_forward(self.views.normalise(x))

    @torch.no_grad()
    def update_statistics_again(self, out: Output) -> None:
        """Forwards the same views a second time, only to move BatchNorm's running statistics."""
        if self.extra_forwards:
            self.model.train_forward(out.views)

    def new_samples_of_mix(self, mix: Tensor, size: int) -> Tensor:
        """Returns `size` samples of new classes: those in X^mix, repeated in turn.

        They lie behind the old ones. Their number is known only on the device, so indices wrap
        around instead of slicing."""
        n_old, n_new = released_shares(len(mix), self.new.sum(), self.seen.sum())
        offset = torch.arange(size, device=self.trainer.torch_device) % n_new.clamp(min=1)
        return mix.index_select(0, (n_old + offset).clamp(max=len(mix) - 1))

    def weight(self) -> Tensor:
        """Returns w for every row of the head, (C); 1 during the first batches of a task."""
        w = released_weight(self.balance.positive, self.balance.negative).float()
        warm = self.balance.updates <= self.warm_up * self.repeats  # one update a step
        return torch.where(warm, 1.0, w)
