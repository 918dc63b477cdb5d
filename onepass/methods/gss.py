"""Gradient-based sample selection, greedy: keep samples whose gradients point in many directions.

Paper: Aljundi et al., "Gradient based sample selection for online continual learning", NeurIPS
2019, algorithm 2. Training is experience replay with random draws,

    L = E_{X^new} -log p_y + E_{X^buf} -log p_y

and what is special is what is kept. With g(.) the gradient of the mean cross-entropy of some
samples over all parameters, S_1 ... S_n disjoint random subsets of the memory, and

    c_i = max_k cos(g(x_i), g(S_k)),   c = max_k cos(g(X^new), g(S_k))

each stored sample keeps the c_i that it came with as its score s. While there is room, samples go
in. Once the memory is full, a batch of c >= 0 adds nothing; of another, each sample i is given a
victim j of its own, drawn without replacement with probability proportional to s_j - min s, and

    P(i replaces j) = (s_j + 1) / ((s_j + 1) + (c_i + 1))

Decisions: gradients are taken after the optimiser's step, on plain images, in evaluation mode, of
the softmax over the classes seen so far. Then g(X^new) is the mean of the g(x_i) and costs no pass
of its own. The first batch has score 0.1. The batch that fills the memory loses its tail. While
the memory holds fewer than n subsets, the last is short and the rest are left out. Where all
scores are equal, every stored sample is as likely a victim; else those of the lowest score are
never one, and samples for which no victim is left are dropped.
Departures: one step on both batches together (a joint forward, the sum of two means), as `er`
here; the authors' code takes two optimiser steps, one on each batch, and ten such rounds a batch.
It knows no augmentation; its softmax has all classes of the data set.
Cost: batch + replay images, and n subsets + batch single images for the gradients of the update,
all forward and backward; room for twice n + batch gradient vectors (ResNet18: 40 x 11.2 M floats,
1.8 GB). Kept: raw sample, label, score.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.parts import ImageCount, Output, Samples, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import cross_entropy
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.learning.traits import Traits
from onepass.memory import FillFirst
from onepass.nets import Gradients, batch_gradients

FIRST_SCORE = 0.1
TINY = torch.finfo(torch.float32).tiny
LEAST_EXPONENT = -120  # its power of 2 has an inverse in fp32
PIECES = 4096  # of gradient vectors, so that all multiprocessors of a GPU have some


def vectors(gradients: Gradients) -> Tensor:
    """(samples or subsets, parameters), filled up with zeros to PIECES equal pieces."""
    rows = [one.reshape(len(one), -1) for one in gradients.values()]
    missing = -sum(one.shape[1] for one in rows) % PIECES
    return torch.cat([*rows, rows[0].new_zeros(len(rows[0]), missing)], dim=1)


def inner(first: Tensor, second: Tensor) -> Tensor:
    """Dot products of all pairs of rows, piece by piece: the product of two flat matrices at once
    would be left to a few of a GPU's multiprocessors, however long the rows are."""
    one, other = (rows.view(len(rows), PIECES, -1).transpose(0, 1) for rows in (first, second))
    return torch.bmm(one, other.transpose(1, 2)).sum(dim=0)


def magnitude(rows: Tensor) -> Tensor:
    """The exponent of each one's largest entry."""
    low, high = rows.aminmax(dim=1)  # no copy, as abs
    return torch.frexp(torch.maximum(high, -low)).exponent.clamp(min=LEAST_EXPONENT)


def scaled_down(rows: Tensor, exponent: Tensor) -> Tensor:
    """Divided by these powers of 2, in place, so that squares of the tiniest gradients do not
    vanish."""
    inverse = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), -exponent)
    return rows.mul_(inverse.unsqueeze(1))


def cosines(singles: Gradients, subsets: Gradients) -> Tensor:
    """(samples + 1, subsets): of each sample's gradient, and, last, of their mean, which is that of
    the whole batch; 0 where a gradient vanishes."""
    new, kept = vectors(singles), vectors(subsets)  # (b, P) (n, P)
    size = magnitude(new)
    new, kept = scaled_down(new, size), scaled_down(kept, magnitude(kept))
    # powers of 2 that put the singles back on one scale, so that their sum points as the mean does
    scale = torch.ldexp(torch.ones_like(size, dtype=torch.float32), size - size.max())  # (b)
    products, own = inner(new, kept), inner(new, new)  # (b, n) (b, b)
    products = torch.cat([products, (scale @ products).unsqueeze(0)])  # (b + 1, n)
    squared = torch.cat([own.diagonal(), (scale @ own @ scale).view(1)]).clamp(min=0)
    lengths = torch.outer(squared.sqrt(), inner(kept, kept).diagonal().sqrt())
    return (products / lengths.clamp(min=TINY)).clamp(-1, 1)


def replacing(victim: Tensor, new: Tensor) -> Tensor:
    """The probability that a sample of score `new` replaces one of score `victim`.

    >>> replacing(torch.tensor([0.0, 1.0, -1.0]), torch.tensor([0.0, -1.0, 0.5]))
    tensor([0.5000, 1.0000, 0.0000])
    """
    return (victim + 1) / (victim + new + 2).clamp(min=TINY)


class Scored(FillFirst):
    """A full memory offers its most redundant samples for replacement."""

    def victims(self, count: int) -> Tensor:
        """Slots drawn without replacement, with probability proportional to the score above the
        lowest one; the scratch row, where no such slot is left."""
        score = self.fields["score"][: self.capacity]
        low, high = score.aminmax()
        rate = F.pad(score - low + (low == high), (0, count))
        # of independent exponential times at these rates, the earliest are such a draw
        uniform = torch.rand(len(rate), generator=self.rng, device=rate.device)
        slots = (-uniform.log() / rate).topk(count, largest=False).indices
        return slots.masked_fill(rate.index_select(0, slots) == 0, self.capacity)

    def exchange(self, x: Tensor, y: Tensor, score: Tensor, diverse: Tensor) -> None:
        """Samples take their victims' slots at random by the scores; none does if the batch is not
        diverse or there still are free slots."""
        victims = self.victims(len(y))
        chance = replacing(self.fields["score"].index_select(0, victims), score)
        uniform = torch.rand(len(y), generator=self.rng, device=y.device)
        enters = diverse & (self.size >= self.capacity) & (uniform < chance)
        self.write(victims.masked_fill(~enters, self.capacity), x, y, score=score)


@method(
    "gss",
    paper="Aljundi et al., Gradient based sample selection for online continual learning",
    year=2019,
)
@dataclass(kw_only=True, eq=False)
class GSS(Replay):
    """Greedy gradient-based sample selection.

    Parameters
    ----------
    memory
        How many samples are kept.
    replay
        How many of them are trained with each stream batch.
    subsets
        With the gradients of how many subsets of the memory new samples are compared.
    subset_size
        How many samples each of them has.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.GSS(memory=100, seed=0), stream)
    >>> last.accuracy > 50
    True
    """

    subsets: int = 10
    subset_size: int = 10

    store: Scored = field(init=False)
    traits: ClassVar[Traits] = Traits(least_memory=1)
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {"optimizer": "sgd", "lr": 0.01, "weight_decay": 0.0, "replay": 10, "augment": "none"},
            "the authors' script for CIFAR10 (Cifar_10.sh, GSS_Greedy), whose ten rounds a batch "
            "are one here",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "subsets", self.subsets >= 1, "at least 1")
        require(self, "subset_size", self.subset_size >= 1, "at least 1")

    def make_store(
        self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator
    ) -> Scored:
        return Scored(self.memory, shape, dtype, rng, {"score": torch.zeros(())})

    def cost(self, batch: int) -> ImageCount:
        return super().cost(batch) + self.cost_of_letting_in(batch)

    def cost_of_letting_in(self, batch: int) -> ImageCount:
        return ImageCount(self.subsets * self.subset_size + batch)

    def shown(self, batch: int) -> int:
        return super().cost(batch).trained

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                   (b)
        replay = self.store.draw(self.replay, fallback=stream)  # X^buf           (r)
        stream_out, replay_out = self.forward(stream, replay)  # logits    (b, C) (r, C)
        stream_loss = cross_entropy(stream_out, among=self.seen)
        replay_loss = cross_entropy(replay_out, among=self.seen)
        loss = stream_loss + replay_loss
        self.descend(loss)

        if self.trainer.lets_in:
            score, diverse = self.scores_of(stream)  # c_i, and whether c < 0     (b) ()
            self.store.exchange(x, y, score, diverse)  # in a full memory
            self.store.add(x, y, score=score)  # in one with room
        return Step.of(loss, stream_out, replay_out)

    def scores_of(self, stream: Samples) -> tuple[Tensor, Tensor]:
        """c_i of each sample, and whether c < 0: the batch as a whole points away from what the
        memory holds."""
        slots, genuine = self.store.draw_slots(self.subsets * self.subset_size)
        x, y = (held.index_select(0, slots) for held in (self.store.x, self.store.y))
        drawn = Samples(x, y, genuine.float())
        subsets = self.gradients_of(drawn, self.subsets)
        similarity = cosines(self.gradients_of(stream, len(stream.y)), subsets)
        some = genuine.view(self.subsets, -1).any(dim=1)
        best = similarity.masked_fill(~some, -1).amax(dim=1)
        score = best[:-1].masked_fill(self.store.size == 0, FIRST_SCORE)
        return score, best[-1] < 0

    def gradients_of(self, samples: Samples, batches: int) -> Gradients:
        """Of the mean cross-entropy of so many equal pieces of the samples."""
        x, y, weight = (part.view(batches, -1, *part.shape[1:]) for part in samples)

        def loss(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return cross_entropy(Output(logits, y, weight), among=self.seen)

        return batch_gradients(self.trainer.evaluator, loss, self.views.normalise(x), y, weight)
