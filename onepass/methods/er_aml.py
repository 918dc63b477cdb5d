"""Asymmetric metric learning: the stream is trained by a contrastive loss whose negatives come only
from the classes of the batch. The replay is trained by cross-entropy over all classes.

Paper: Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online Continual
Learning", ICLR 2022. Each sample i of the stream batch X^new has one positive, another sample of
its class. It also has one negative, a sample of another class of the batch. Both are drawn at
random from the batch and the memory. z = f(x) / |f(x)|, S are all drawn positives and negatives,
S_i those of the class of i. X^buf is a draw from the memory, current classes included:

    L = (t / 0.07) E_{i in X^new} 1/|S_i| sum_{j in S_i} -log e^{z_i z_j / t} / sum_{k in S} e^{...}
      + E_{X^buf} -log softmax_{seen}(o)_y

In the first task, and while the memory is empty, the first term is E_{X^new} -log softmax_{seen}.

Decisions where the authors' code (pclucas14/AML) has two modes:

- Plain cross-entropy on the stream lasts for the first task, as in their runs with task ids. In
  their runs without task ids it ends with the first stored sample. Here the end of the first task
  may be given or inferred.
- Negatives come from the classes of the batch, and replay begins with the first stored sample. Both
  are as in their runs without task ids.
- A sample that lacks a positive or a negative is left out of the first term, and so is its other
  partner. If this holds for all samples (a batch of one class), the term is 0.
- The batch, its partners (positives and negatives) and the replay have separate forward passes, as
  in their code. With `mirror`, mirror images are further samples.

Departures: the softmax of the cross-entropy runs over the classes seen so far. The stream's
cross-entropy sees augmented images (raw in their code). A sample that lacks a partner is its own
partner at weight 0, and BatchNorm sees this padding. The authors count memory per class, replay 10
samples, and train a ResNet18 of a third of the width, without augmentation or with padded crops and
flips. Their option for a minimal selection has no effect in their code and is left out.
Cost: 3 batch + replay images, forward and backward. Kept: raw samples and labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.devices import widest_float
from onepass.base.parts import ImageCount, Samples, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import cross_entropy, mean
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.nets import Head, cosine_head

BASE_TEMPERATURE = 0.07  # the 0.07 of L


def draw_partners(
    y: Tensor, pool: Tensor, there: Tensor, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draws a positive and a negative for each label from a pool of labels that begins with `y`.

    Returns their indices in the pool, (2, b), and a mask (b) of the labels that have both. Where a
    label has no positive or no negative, its own index stands. `there` (p) is a mask of the pool's
    entries that may be drawn."""
    # the pool begins with the batch: its entry i is sample i     (b, p)
    own = torch.eye(len(y), len(pool), dtype=torch.bool, device=y.device)
    same = y.unsqueeze(1) == pool
    in_batch = same.any(dim=0)  # entries whose class the batch has  (p)
    # positives, negatives                                     (2, b, p)
    valid = torch.stack([same & ~own, ~same & in_batch]) & there
    counts = valid.int().cumsum(dim=2)
    total = counts[..., -1:]  # number of valid entries        (2, b, 1)
    uniform = torch.rand(total.shape, generator=rng, device=y.device, dtype=widest_float(y.device))
    # the k-th valid entry, for a random k: the first whose running count reaches k
    drawn = torch.searchsorted(counts, (uniform * total).long() + 1)
    itself = torch.arange(len(y), device=y.device).unsqueeze(1)
    return torch.where(total > 0, drawn, itself).squeeze(2), (total > 0).all(dim=0).squeeze(1)


def partner_contrast(anchors: Samples, items: Samples, temperature: float) -> Tensor:
    """Returns the mean over anchors i of -(t / 0.07) 1/|S_i| sum_{j in S_i} log [e^{z_i z_j/t} /
    sum_k e^{z_i z_k/t}], where S_i are the items of i's class.

    The samples' `x` are unit vectors. Unlike `losses.supervised_contrastive`, no anchor is compared
    with another anchor. Items and anchors of weight 0 take no part.

    >>> z = torch.ones(4, 1)
    >>> four = Samples(z, torch.tensor([0, 0, 1, 1]), torch.ones(4))
    >>> float(partner_contrast(four, four, 0.07).exp())
    4.0
    """
    counts = items.weight > 0
    similarity = (anchors.x @ items.x.T / temperature).masked_fill(~counts, -torch.inf)
    positives = (anchors.y.unsqueeze(1) == items.y) & counts
    log_prob = similarity.log_softmax(dim=1).masked_fill(~positives, 0)
    per_anchor = -log_prob.sum(dim=1) / positives.sum(dim=1).clamp(min=1)
    return temperature / BASE_TEMPERATURE * mean(per_anchor, anchors.weight)


@method(
    "er-aml",
    paper="Caccia et al., New Insights on Reducing Abrupt Representation Change (ER-AML)",
    year=2022,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class ERAML(Replay):
    """Experience replay with asymmetric metric learning.

    Parameters
    ----------
    memory
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for the cross-entropy of each step.
    temperature
        Temperature t of the contrastive loss.
    classifier
        `linear`, or `cosine`: logits are 10 times the cosines between features and class rows.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.ERAML(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    temperature: float = 0.2
    classifier: Literal["linear", "cosine"] = "cosine"

    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "classifier": "cosine",
                "temperature": 0.2,
                "replay": 10,
                "optimizer": "sgd",
                "lr": 0.1,
                "weight_decay": 0.0,
                "augment": "none",
            },
            "the authors' repository pclucas14/AML: defaults of main.py (learning rate searched "
            "among 0.1, 0.01 and 0.001) and the cosine classifier of model.py",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "temperature", self.temperature > 0, "positive")

    def make_head(self, features: int, rng: torch.Generator) -> Head:
        if self.classifier == "linear":
            return super().make_head(features, rng)
        return cosine_head(features, rng)

    def cost(self, batch: int) -> ImageCount:
        return ImageCount(trained=(3 * batch + self.replay) * self.views_per_sample)

    def partners(self, stream: Samples) -> Samples:
        """Returns a positive for each stream sample, then a negative for each, (2 b). Both have
        weight 0 if one of them is missing."""
        held = torch.arange(self.memory + 1, device=self.trainer.torch_device) < self.store.size
        pool = torch.cat([stream.y, self.store.y])  # labels of batch and memory  (b + M + 1)
        there = torch.cat([stream.weight > 0, held])
        rng = self.trainer.rngs["draws"]
        drawn, both = draw_partners(stream.y, pool, there, rng)  #                 (2, b) (b)
        index, batch = drawn.flatten(), len(stream.y)
        in_stream = (index < batch).view(-1, *[1] * (stream.x.ndim - 1))
        x = torch.where(
            in_stream,
            stream.x.index_select(0, index.clamp(max=batch - 1)),
            self.store.x.index_select(0, (index - batch).clamp(min=0)),
        )
        return Samples(x, pool.index_select(0, index), both.float().repeat(2))

    def embed(self, features: Tensor, samples: Samples) -> Samples:
        """Returns one sample for each view, with the view's unit features z in place of x."""
        times = self.views_per_sample
        z = F.normalize(features.float())
        return Samples(z, samples.y.repeat(times), samples.weight.repeat(times))

    def teacher_images(self, batch: int) -> int:
        return (batch + self.replay) * self.views_per_sample  # partners have no logits

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                            (b)
        partners = self.partners(stream)  # S: positives, then negatives            (2 b)
        anchors = stream._replace(weight=partners.weight[: len(y)])  # with both partners
        replay = self.store.draw(self.replay, fallback=stream)  # X^buf               (r)

        views = self.views(torch.cat([x, partners.x, replay.x]))
        pieces = self.views.cut(views, (len(y), 2 * len(y), self.replay))
        of_stream, of_partners, of_replay = (self.model.features(piece) for piece in pieces)
        head = partial(self.model.on, self.model.head)
        output = self.trainer.output
        stream_out = output(head(of_stream), stream, lambda: pieces[0])  # logits  (b, C)
        replay_out = output(head(of_replay), replay, lambda: pieces[2])  # logits  (r, C)
        self.trainer.record_forward([stream_out], [stream])
        self.trainer.record_forward([replay_out], [replay])

        plain = (self.store.size == 0) | ~self.old.any()  # first task or empty memory
        metric = partner_contrast(
            self.embed(of_stream, anchors),
            self.embed(of_partners, partners),
            self.temperature,
        )
        stream_loss = torch.where(plain, cross_entropy(stream_out, among=self.seen), metric)
        replay_loss = cross_entropy(replay_out, among=self.seen)
        loss = stream_loss + replay_loss

        self.keep(x, y)
        self.descend(loss)
        by_softmax = stream_out._replace(weight=stream_out.weight * plain)
        return Step.of(loss, by_softmax, replay_out, stream=stream_loss, replay=replay_loss)
