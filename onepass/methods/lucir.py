"""LUCIR, a unified classifier by rebalancing: a cosine head with fixed old rows, features that are
held to those of the previous network, and a margin between the cosines of old and new classes.

Paper: Hou et al., "Learning a Unified Classifier Incrementally via Rebalancing", CVPR 2019. N are
the classes that are new since the last boundary, O the older ones. X is the stream batch and a draw
from the memory, current classes included; X^old are its samples of O. h are the features, h' those
of the network at that boundary for the same views. w_c are the rows of the head. K(x) are the 2
classes of N that have the highest cosines for x:

    o_c = s cos(h, w_c),  s a number that is trained
    L = E_X -log softmax_{seen}(o)_y + distill sqrt(|O| / |N|) E_X (1 - cos(h, h'))
      + E_{X^old} mean_{c in K(x)} max(0, margin - cos(h, w_y) + cos(h, w_c))

From the first boundary on, rows of O stay fixed. From the second task on, a row of N starts as the
mean of its class's unit features (imprinting). It gets the mean length of the rows of O.

Decisions: how the GSA authors made the method online is not known, so these are ours.

- A row is imprinted in the step that brings its class, from this batch's samples of the class:
  their views in this step's forward pass, before the update. The authors have all samples of the
  class, not augmented, before they train.
- X has one joint forward pass and one mean.
- s starts at 10 (`scale`); the authors' starts at 1 and grows over 160 passes. From 1, a single
  pass over CIFAR100 learns the first task only: each later task is at 1 % or less when it has just
  been learned, and at the end (results/lines/table1.jsonl, revision 1). A softmax that is nearly
  even would not give zeros. Most of it is the small scale, and the margin does the rest: it pushes
  new rows away from features that the last ReLU keeps positive. On 50 classes of CIFAR100 at 16 x
  16, one seed: 10.7, tasks 53 0 0 0 0; with margin 0 14.4, tasks 42 7 7 5 11; without the last ReLU
  15.0; with scale 10 25.4, tasks 24 21 29 22 31.
- Accuracy on digits, M=100, five seeds: 68.6 ± 8.3 from 1, 80.5 ± 4.2 from 2, 89.3 ± 1.5 from 4,
  92.8 ± 2.1 from 10 (of the test set). In tasks of few steps, larger scales leave bad rows, which
  the boundary fixes for good. With 8 steps a task (the stream of `onepass.tools.checks`, three
  seeds) accuracy is 60 from 1 and 24 from 10.
- A stream sample of an old class counts as old in the margin, as a replayed one does.
- With a single new class, K(x) is that class.

Departures from the authors' code and the paper: those above; one pass over the stream; a reservoir
instead of herded samples. Features are used as the network gives them; theirs have no last ReLU, so
their cosines can be negative. mammoth trains the head for 20 more passes over the memory. The paper
does not, nor does this file.
Cost: batch + replay images, forward and backward, and once more forward through the previous
network. Kept: raw samples and labels, and the previous network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.parts import ImageCount, Output, Samples, StatefulPart, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import cross_entropy, mean, one_hot
from onepass.learning.network_copies import PreviousNetwork
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.learning.trainer import Trainer
from onepass.learning.traits import Traits
from onepass.nets import FIRST_CAPACITY, Head, ScaledCosineHead
from onepass.nets.optimisers import pad_rows

HARDEST = 2  # |K(x)|


def margin_ranking(cosines: Output, new: Tensor, old: Tensor, margin: float) -> Tensor:
    """Returns the mean of max(0, margin - cos_y + cos_c) over samples of old classes and over the
    HARDEST new classes c of each.

    These are the new classes with the highest cosines. If there is only one new class, it is that
    one. `cosines` has cosines in place of logits. `new` and `old` are masks (C).

    >>> old = torch.tensor([True, False, False, False])
    >>> sample = Output(torch.tensor([[0.9, 0.6, 0.2, 0.1]]), torch.tensor([0]), torch.ones(1))
    >>> margin_ranking(sample, ~old, old, 0.5)  # (0.2 + 0) / 2
    tensor(0.1000)
    """
    values, y = cosines.logits, cosines.y
    rivals = values.masked_fill(~new, -torch.inf).topk(HARDEST).values  # (n, 2)
    excess = (margin - values.gather(1, y.unsqueeze(1)) + rivals).clamp(min=0)
    each = excess.sum(dim=1) / new.sum().clamp(min=1, max=HARDEST)
    return mean(each, cosines.weight * old[y])


class OldRowFreezer(StatefulPart):
    """Fixes the head's rows of old classes: the optimiser no longer moves them. It also knows the
    rows whose class the current batch has brought (`fresh`)."""

    tensors: ClassVar[tuple[str, ...]] = ("known",)

    def __init__(self, trainer: Trainer) -> None:
        self.network, self._seen = trainer.model, trainer.seen
        self.known = torch.zeros_like(trainer.seen)  # classes of earlier steps  (C)

    @property
    def fresh(self) -> Tensor:
        """The rows whose class first came in this step, a mask (C)."""
        return self._seen & ~self.known

    def follow(self) -> None:
        self.known.copy_(self._seen)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self._seen = seen
        self.network.head.free.logical_and_(new)

    def new_task(self) -> None:
        self.network.head.remember()

    def grow(self, rows: int) -> None:
        self.known = pad_rows(self.known, rows - len(self.known))


@method(
    "lucir",
    paper="Hou et al., Learning a Unified Classifier Incrementally via Rebalancing",
    year=2019,
    boundaries="uses",
    revision=2,
)
@dataclass(kw_only=True, eq=False)
class LUCIR(Replay):
    """A cosine head, distilled features and a margin.

    Parameters
    ----------
    memory
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for each stream batch.
    distill
        Weight of the distance to the previous network's features, before the factor sqrt(old
        classes / new classes).
    margin
        Margin between the cosine of an old sample's class and those of new classes.
    scale
        Initial factor s of the cosines; the authors' is 1.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.LUCIR(memory=100, seed=0), stream)
    >>> last.accuracy > 85
    True
    """

    distill: float = 5.0
    margin: float = 0.5
    scale: float = 10.0

    previous: PreviousNetwork = field(init=False)
    rows: OldRowFreezer = field(init=False)
    traits: ClassVar[Traits] = Traits(
        exempt={
            "beats_finetuning": "in tasks of eight batches a scale of 10 leaves bad rows, which "
            "the boundary fixes",
            "vectors_are_learned_like_images": "eight batches are too few for a scale of 10",
        }
    )
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "optimizer": "nesterov",
                "lr": 0.1,
                "weight_decay": 5e-4,
                "distill": 5.0,
                "margin": 0.5,
                "scale": 1.0,
            },
            "the authors' repository hshustc/CVPR19_Incremental_Learning: run.sh and "
            "class_incremental_cosine_cifar100.py (batches of 128), without its schedule; its "
            "momentum of 0.9 is not Nesterov's",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "distill", self.distill >= 0, "zero or more")
        require(self, "margin", self.margin >= 0, "zero or more")
        require(self, "scale", self.scale > 0, "positive")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().build(shape, dtype)
        self.previous = PreviousNetwork(self.trainer)  # copied at every boundary
        self.rows = OldRowFreezer(self.trainer)

    def make_head(self, features: int, rng: torch.Generator) -> Head:
        return ScaledCosineHead(features, FIRST_CAPACITY, rng, self.scale)

    def cost(self, batch: int) -> ImageCount:
        images = (batch + self.replay) * self.views_per_sample
        return ImageCount(trained=images, scored=images)

    def step(self, x: Tensor, y: Tensor) -> Step:
        head = cast(ScaledCosineHead, self.model.head)
        stream = Samples.of(x, y)  # X^new                                                  (b)
        replay = self.store.draw(self.replay, fallback=stream)  #                           (r)
        samples = stream.then(replay)  # both, X                                        (b + r)
        views = self.views(samples.x)
        features = self.model.features(views)  # features h                          (b + r, F)
        self.imprint(features, samples.y, samples.weight)
        cosine = self.model.on(head.cosines, features)  #                            (b + r, C)
        out = self.trainer.output(head.scale * cosine, samples, lambda: views)  # logits (b + r, C)
        self.trainer.record_forward([out], [samples])

        label_loss = cross_entropy(out, among=self.seen)
        distance = 1 - F.cosine_similarity(features.float(), self.previous.features(views))
        feature_loss = mean(distance, out.weight)
        margin_loss = margin_ranking(out._replace(logits=cosine), self.new, self.old, self.margin)
        ratio = self.old.sum() / self.new.sum().clamp(min=1)  # |O| / |N|, 0 in the first task
        loss = label_loss + self.distill * ratio.sqrt() * feature_loss + margin_loss

        self.keep(x, y)
        self.descend(loss)
        terms = {"labels": label_loss, "features": feature_loss, "margin": margin_loss}
        return Step.of(loss, *self.trainer.split_output(out, stream, replay), **terms)

    @torch.no_grad()
    def imprint(self, features: Tensor, y: Tensor, weight: Tensor) -> None:
        """Gives each fresh row the direction of its class's mean unit feature, and the mean length
        of old rows. In the first task it changes nothing."""
        head, times = self.model.head, self.views_per_sample
        member = one_hot(y, head.capacity) * weight.unsqueeze(1)  # (n, C)
        units = F.normalize(features.float())
        means = F.normalize(member.repeat(times, 1).T @ units)  # (C, F)
        length = mean(head.weight.norm(dim=1), self.old.float())
        # a frozen row stays fixed, and features that are all zero have no direction
        imprinted = self.rows.fresh & head.free & self.old.any() & (means != 0).any(dim=1)
        torch.where(imprinted.unsqueeze(1), length * means, head.weight, out=head.weight)
