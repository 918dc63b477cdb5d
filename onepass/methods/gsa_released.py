"""GSA as its published script computes it, which is not what the paper's equations say.

Paper: Guo, Liu, Zhao, CVPR 2023; script: the authors' repository gydpku/GSA (CIFAR100 only). With
cur up to 22 samples of the current task from the memory, X^mix made of int(64 |O| / |seen|) old
samples and the first int(64 |N| / |seen|) of [X^new; cur], and every image also as its mirror
image:

    L = 2 E_{X^mix} [ -w_y log softmax_{seen}(o)_y ] + E_{[X^new; cur]} -log softmax_N(o)_y
    w_c = 2 / (1 + exp(1 - r_c)),  r_c = |S-(c)| / S+(c) over X^mix of all tasks

so there is no T2, no T3 and no v; w grows with the inverse of the ratio in the paper (balance 1,
range 0.54 … 2) and is 1 during the first five batches of a task. The images of [X^new; cur] are
augmented twice, those of X^mix once, in forwards of their own. The head is never registered with
the optimiser after the first task, hence `head="frozen"`; X^mix is not trained while the memory is
empty. Of six forwards in a step the script uses two; the others move BatchNorm's running statistics
and nothing else, half of them by raw images, as those that are predicted are: they are made here
too (`extra_forwards`).

Departures from the script: the softmax runs over the classes seen so far, not over all classes of
the task; an exact reservoir; log-softmax instead of the logarithm of a softmax; a class without a
rate has w = 1; where the batches are not full (all of the first task, the first steps of others)
their samples are repeated at weight 0, which BatchNorm sees.
Agreement: over CIFAR100, M=1000, the script's mean accuracy after each of the ten tasks lies within
1.5 points or two standard deviations of this file's, three seeds (results/gsa-released.md).
Cost: 2 (batch + cur + mix) images, forward and backward, and 2 batch + cur + 3 mix forward only.
Kept: raw sample and label.
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
    """w = 2 / (1 + exp(1 - |S-| / S+)); 1 where a class has had no gradient.

    >>> ratio = torch.tensor([0.0, 0.5, 1.0, 2.0, 5.0])
    >>> released_weight(torch.ones(5), -ratio)
    tensor([0.5379, 0.7551, 1.0000, 1.4621, 1.9640])
    """
    w = 2 / (1 + torch.exp(1 - negative.abs() / positive))
    return torch.where((positive == 0) & (negative == 0), 1.0, w)


def shares(size: int, new: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the places of X^mix are for old and for new classes: both rounded down, so that
    one place may stay empty."""
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
        How many samples are kept.
    mix
        The size of X^mix.
    current
        How many samples of the current classes are replayed.
    warm_up
        For how many batches of each task all w are 1, in each of their `repeats`.
    extra_forwards
        Whether the script's four further forwards are made, for BatchNorm's statistics.

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
            self.memory, shape, dtype, rng, size=self.mix, shares=shares, fill=self.current
        )

    def cost(self, batch: int) -> ImageCount:
        trained = batch + self.current + self.mix
        raw = batch + self.current + self.mix + batch + self.mix * self.views_per_sample
        return ImageCount(trained * self.views_per_sample, scored=raw * self.extra_forwards)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                       (b)
        size = len(y) + self.current
        # X^mix (m) and [X^new; cur] (b + cur)
        mix, current = self.store.mixed_and_current(stream, size, from_stream=True)
        mix = mix._replace(weight=mix.weight * (self.store.size > 0))  # none of it while empty

        # these images are augmented twice, those of X^mix once
        twice = self.views.augmented(self.views(current.x))
        stream_out = self.trainer.output(self.model.train_forward(twice), current, lambda: twice)
        self.trainer.record_forward([stream_out], [current])
        self.pass_by(self.new_part(mix.x, size))
        self.pass_by(mix.x)
        (mix_out,) = self.forward(mix)  # logits                                      (m, C)
        self.pass_by_again(mix_out)
        self.pass_by(x)
        stream_loss = cross_entropy(stream_out, among=self.new)
        self.balance.update((mix_out,), self.seen)  # S+ and S- over X^mix of all tasks
        each = sample_cross_entropy(mix_out, among=self.seen)
        mix_loss = mean(self.weight()[mix_out.y] * each, mix_out.weight)
        loss = 2 * mix_loss + stream_loss

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, stream_out, mix_out, mix=mix_loss, stream=stream_loss)

    @torch.no_grad()
    def pass_by(self, x: Tensor) -> None:
        """Raw images through the network in training mode, for BatchNorm's statistics alone."""
        if self.extra_forwards:
            self.model.train_forward(self.views.normalise(x))

    @torch.no_grad()
    def pass_by_again(self, out: Output) -> None:
        """The same for views that were already forwarded."""
        if self.extra_forwards:
            self.model.train_forward(out.views)

    def new_part(self, mix: Tensor, size: int) -> Tensor:
        """The samples of new classes, which lie behind the old ones in X^mix, repeated to so many:
        how many they are is known on the device only."""
        n_old, n_new = shares(len(mix), self.new.sum(), self.seen.sum())
        place = torch.arange(size, device=self.trainer.torch_device) % n_new.clamp(min=1)
        return mix.index_select(0, (n_old + place).clamp(max=len(mix) - 1))

    def weight(self) -> Tensor:
        """w of every row of the head, 1 while a task warms up, (C)."""
        w = released_weight(self.balance.positive, self.balance.negative).float()
        warm = self.balance.updates <= self.warm_up * self.repeats  # each step on a batch updates
        return torch.where(warm, 1.0, w)
