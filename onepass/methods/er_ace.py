"""Asymmetric cross-entropy: replay in which stream samples compete only with the classes of their
own batch, so that new classes do not push the old ones away.

Paper: Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online Continual
Learning", ICLR 2022. With C(X^new) the classes present in the stream batch X^new and X^buf a draw
from the memory (current classes included):

    L = E_{X^new} -log e^{o_y} / sum_{c in C(X^new)} e^{o_c}
      + E_{X^buf} -log e^{o_y} / sum_{c seen} e^{o_c}

Decisions: as in the authors' code (pclucas14/AML), which is task-free, the first task is like any
other: the restricted softmax and the replay both begin with the stream (mammoth's version trains
the first task by plain cross-entropy without replay). Forwards of stream and replay are separate,
as there. A batch of one class has a stream term of 0.
Departures: classes not yet seen never take part; the authors' code leaves every output from the
largest seen label on in the stream's softmax, which presumes that labels arrive in order and that
their number is known. The default classifier is linear, so that with all classes in every batch
this is ER with the sum of two means; the authors' is a cosine of scale 10. They count memory per
class, replay 10, and train a ResNet18 of a third of the width, without augmentation or with padded
crops and flips.
Cost: batch + replay images, forward and backward. Kept: raw sample and label.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from onepass.learner import FIRST_CAPACITY, Learner
from onepass.losses import cross_entropy, one_hot
from onepass.memory import Reservoir
from onepass.nets import CosineHead, Head
from onepass.parts import Passes, Preset, Samples, Step
from onepass.registry import method

SCALE = 10.0


@method(
    "er-ace",
    paper="Caccia et al., New Insights on Reducing Abrupt Representation Change (ER-ACE)",
    year=2022,
)
@dataclass(kw_only=True, eq=False)
class ERACE(Learner):
    """Experience replay with asymmetric cross-entropy.

    Parameters
    ----------
    memory
        How many samples are kept.
    replay
        How many of them are trained with each stream batch.
    classifier
        `linear`, or `cosine`: logits are 10 times the cosines between features and rows.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.ERACE(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    memory: int = 1000
    replay: int = 64
    classifier: Literal["linear", "cosine"] = "linear"

    store: Reservoir = field(init=False, repr=False)
    keeps: ClassVar[tuple[str, ...]] = ("x", "y")
    parts: ClassVar[tuple[str, ...]] = ("store",)
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "classifier": "cosine",
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
        self.require("memory", self.memory >= 0, "zero or more")
        self.require("replay", self.replay >= 1, "at least 1")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.store = Reservoir(self.memory, shape, dtype, self.generators["draws"])

    def make_head(self, features: int) -> Head:
        if self.classifier == "linear":
            return super().make_head(features)
        return CosineHead(features, FIRST_CAPACITY, self.generators["initialisation"], SCALE)

    def passes(self, batch: int) -> Passes:
        return Passes(trained=(batch + self.replay) * self.copies)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples(x, y, torch.ones_like(y, dtype=torch.float32))
        replay = self.store.draw(self.replay, fallback=stream)
        sizes = (len(y), self.replay)
        first, again = self.cut(self.forward(stream.then(replay), sizes), *sizes)

        present = one_hot(y, len(self.seen)).any(dim=0)
        in_batch = cross_entropy(*first, among=present)
        replayed = cross_entropy(*again, among=self.seen)
        loss = in_batch + replayed

        self.descend(loss)
        self.store.add(x, y)
        terms = {"stream": in_batch.detach(), "replay": replayed.detach()}
        return Step(loss.detach(), terms, (first.detach(), again.detach()))
