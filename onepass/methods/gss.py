"""Gradient-based sample selection (GSS), greedy: keep samples whose gradients point in many
directions.

Paper: Aljundi et al., "Gradient based sample selection for online continual learning", NeurIPS
2019, algorithm 2. Training is experience replay with random draws:

    L = E_{X^new} -log p_y + E_{X^buf} -log p_y

The method decides what the memory stores. g(.) is the gradient of the mean cross-entropy of some
samples by all parameters. S_1 ... S_n are disjoint random subsets of the memory:

    c_i = max_k cos(g(x_i), g(S_k)),   c = max_k cos(g(X^new), g(S_k))

A stored sample keeps the c_i with which it arrived as its score s. While there are free slots,
samples are stored. Once the memory is full, a batch with c >= 0 adds nothing. In any other batch
each sample i gets a victim j, a stored sample that it may replace. Victims are drawn without
replacement, with probability proportional to s_j - min s:

    P(i replaces j) = (s_j + 1) / ((s_j + 1) + (c_i + 1))

Decisions:

- Gradients are taken after the optimiser's step, on plain images, in evaluation mode, with the
  softmax over the classes seen so far. g(X^new) is then the mean of the g(x_i) and needs no pass of
  its own.
- The first batch has score 0.1. A batch that fills the memory loses its remaining samples.
- While the memory has fewer samples than n subsets need, the last subset is short and the missing
  ones are left out.
- If all scores are equal, every stored sample is equally likely to be a victim. If not, a sample
  with the lowest score is never one. A new sample for which no victim is left is dropped.

Departures: one optimiser step on both batches (a joint forward pass, the sum of two means), like
`er` here. The authors' code takes two steps, one on each batch, and repeats this ten times for each
batch. It has no augmentation, and its softmax has all classes of the dataset.
Cost: batch + replay images, and n `subset_size` + batch images for the gradients of the update, all
forward and backward. GPU memory for 2 (n + batch) gradient vectors (ResNet18, n = batch = 10: 40 x
11.2 M floats, 1.8 GB). Kept: raw samples, labels, scores.
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
from onepass.nets import Gradients, gradients_per_batch

FIRST_SCORE = 0.1  # c_i while the memory is empty
TINY = torch.finfo(torch.float32).tiny
LEAST_EXPONENT = -120  # 2^-120 still has an inverse in fp32
PIECES = 4096  # gradient vectors are cut into these, so that all of a GPU's multiprocessors work


def gradient_vectors(gradients: Gradients) -> Tensor:
    """Returns one row for each sample or subset: all gradients, padded with zeros to PIECES equal
    pieces."""
    rows = [gradient.reshape(len(gradient), -1) for gradient in gradients.values()]
    missing = -sum(row.shape[1] for row in rows) % PIECES
    return torch.cat([*rows, rows[0].new_zeros(len(rows[0]), missing)], dim=1)


def pairwise_dots(first: Tensor, second: Tensor) -> Tensor:
    """Returns the dot products of all pairs of rows, computed piece by piece. A single product of
    two flat matrices would use few of a GPU's multiprocessors, however long the rows are."""
    left, right = (rows.view(len(rows), PIECES, -1).transpose(0, 1) for rows in (first, second))
    return torch.bmm(left, right.transpose(1, 2)).sum(dim=0)


def largest_exponent(rows: Tensor) -> Tensor:
    """Returns the binary exponent of the largest absolute value in each row."""
    low, high = rows.aminmax(dim=1)  # abs would copy
    return torch.frexp(torch.maximum(high, -low)).exponent.clamp(min=LEAST_EXPONENT)


def scale_down(rows: Tensor, exponent: Tensor) -> Tensor:
    """Divides each row by 2^exponent, in place, so that squares of tiny gradients do not underflow.
    Returns the rows."""
    inverse = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), -exponent)
    return rows.mul_(inverse.unsqueeze(1))


def cosines(singles: Gradients, subsets: Gradients) -> Tensor:
    """Returns the cosine between each sample's and each subset's gradient, (samples + 1, subsets).
    It is 0 where one of the gradients is 0.

    The last row is for the mean of the samples' gradients, which is the gradient of the whole
    batch."""
    new, kept = gradient_vectors(singles), gradient_vectors(subsets)  # (b, P) (n, P)
    size = largest_exponent(new)
    new, kept = scale_down(new, size), scale_down(kept, largest_exponent(kept))
    # put the samples back on one scale, so that their sum points in the direction of the mean  (b)
    scale = torch.ldexp(torch.ones_like(size, dtype=torch.float32), size - size.max())
    products, own = pairwise_dots(new, kept), pairwise_dots(new, new)  # (b, n) (b, b)
    products = torch.cat([products, (scale @ products).unsqueeze(0)])  # (b + 1, n)
    squared = torch.cat([own.diagonal(), (scale @ own @ scale).view(1)]).clamp(min=0)
    lengths = torch.outer(squared.sqrt(), pairwise_dots(kept, kept).diagonal().sqrt())
    return (products / lengths.clamp(min=TINY)).clamp(-1, 1)


def replacement_probability(victim: Tensor, new: Tensor) -> Tensor:
    """Returns the probability that a sample of score `new` replaces one of score `victim`.

    >>> replacement_probability(torch.tensor([0.0, 1.0, -1.0]), torch.tensor([0.0, -1.0, 0.5]))
    tensor([0.5000, 1.0000, 0.0000])
    """
    return (victim + 1) / (victim + new + 2).clamp(min=TINY)


class ScoredMemory(FillFirst):
    """A memory that replaces samples once it is full. Samples with high scores, which are similar
    to other stored ones, are replaced more often."""

    def victims(self, count: int) -> Tensor:
        """Returns `count` slots, drawn without replacement with probability proportional to score -
        lowest score.

        If too few slots have a positive probability, the rest are the scratch row, `capacity`."""
        score = self.fields["score"][: self.capacity]
        low, high = score.aminmax()
        rate = F.pad(score - low + (low == high), (0, count))
        # draw an exponential time at each slot's rate: the earliest slots are a draw without
        # replacement, with probability proportional to the rates
        uniform = torch.rand(len(rate), generator=self.rng, device=rate.device)
        slots = (-uniform.log() / rate).topk(count, largest=False).indices
        return slots.masked_fill(rate.index_select(0, slots) == 0, self.capacity)

    def exchange(self, x: Tensor, y: Tensor, score: Tensor, diverse: Tensor) -> None:
        """Replaces each victim by its new sample, with the probability that follows from their
        scores. Nothing is replaced if `diverse` (c < 0) is false or a slot is free."""
        victims = self.victims(len(y))
        chance = replacement_probability(self.fields["score"].index_select(0, victims), score)
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
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for each stream batch.
    subsets
        Number of subsets of the memory whose gradients new samples are compared with.
    subset_size
        Number of samples in each subset.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.GSS(memory=100, seed=0), stream)
    >>> last.accuracy > 50
    True
    """

    subsets: int = 10
    subset_size: int = 10

    store: ScoredMemory = field(init=False)
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
    ) -> ScoredMemory:
        return ScoredMemory(self.memory, shape, dtype, rng, {"score": torch.zeros(())})

    def cost(self, batch: int) -> ImageCount:
        return super().cost(batch) + self.cost_of_storing(batch)

    def cost_of_storing(self, batch: int) -> ImageCount:
        return ImageCount(self.subsets * self.subset_size + batch)

    def teacher_images(self, batch: int) -> int:
        return super().cost(batch).trained  # the update's images are not distilled

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                         (b)
        replay = self.store.draw(self.replay, fallback=stream)  # X^buf            (r)
        stream_out, replay_out = self.forward(stream, replay)  # logits  (b, C) (r, C)
        stream_loss = cross_entropy(stream_out, among=self.seen)
        replay_loss = cross_entropy(replay_out, among=self.seen)
        loss = stream_loss + replay_loss
        self.descend(loss)

        if self.trainer.last_repeat:
            score, diverse = self.scores_of(stream)  # c_i, and c < 0           (b) ()
            self.store.exchange(x, y, score, diverse)  # acts on a full memory
            self.store.add(x, y, score=score)  # acts on one with free slots
        return Step.of(loss, stream_out, replay_out)

    def scores_of(self, stream: Samples) -> tuple[Tensor, Tensor]:
        """Returns c_i of each sample, (b), and whether c < 0: the gradient of the batch opposes
        those of all subsets."""
        slots, genuine = self.store.draw_slots(self.subsets * self.subset_size)
        x, y = (held.index_select(0, slots) for held in (self.store.x, self.store.y))
        drawn = Samples(x, y, genuine.float())
        subsets = self.gradients_of(drawn, self.subsets)
        similarity = cosines(self.gradients_of(stream, len(stream.y)), subsets)
        filled = genuine.view(self.subsets, -1).any(dim=1)  # subsets that have samples
        best = similarity.masked_fill(~filled, -1).amax(dim=1)
        score = best[:-1].masked_fill(self.store.size == 0, FIRST_SCORE)
        return score, best[-1] < 0

    def gradients_of(self, samples: Samples, batches: int) -> Gradients:
        """Cuts the samples into `batches` equal pieces. Returns the gradient of the mean
        cross-entropy of each piece."""
        x, y, weight = (part.view(batches, -1, *part.shape[1:]) for part in samples)

        def loss(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return cross_entropy(Output(logits, y, weight), among=self.seen)

        return gradients_per_batch(
            self.trainer.eval_model, loss, self.views.normalise(x), y, weight
        )
