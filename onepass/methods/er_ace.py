"""Asymmetric cross-entropy: replay in which stream samples compete only with the classes of their
own batch, so that new classes do not push the old ones away.

Paper: Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online Continual
Learning", ICLR 2022. C(X^new) are the classes present in the stream batch X^new. X^buf is a draw
from the memory, current classes included:

    L = E_{X^new} -log e^{o_y} / sum_{c in C(X^new)} e^{o_c}
      + E_{X^buf} -log e^{o_y} / sum_{c seen} e^{o_c}

Decisions: the first task is like any other, as in the authors' task-free code (pclucas14/AML). The
restricted softmax begins with the first batch, the replay with the first stored sample. (mammoth
trains the first task by plain cross-entropy without replay.) Stream and replay have separate
forward passes, as in the authors' code. If a batch has one class, its stream term is 0.
Departures: classes not yet seen never take part. The authors' code keeps every output above the
largest seen label in the stream's softmax, which assumes that labels arrive in order and that their
number is known. The default classifier is linear, so with all classes in every batch the method
equals `er` with separate forward passes and the sum of two means. The authors use cosines times 10.
They count memory per class, replay 10 samples, and train a ResNet18 of a third of the width,
without augmentation or with padded crops and flips.
Cost: batch + replay images, forward and backward. Kept: raw samples and labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from onepass.base.parts import Samples, Step
from onepass.base.settings import Preset
from onepass.functional.losses import cross_entropy, one_hot
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.nets import Head, cosine_head


@method(
    "er-ace",
    paper="Caccia et al., New Insights on Reducing Abrupt Representation Change (ER-ACE)",
    year=2022,
)
@dataclass(kw_only=True, eq=False)
class ERACE(Replay):
    """Experience replay with asymmetric cross-entropy.

    Parameters
    ----------
    memory
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for each stream batch.
    classifier
        `linear`, or `cosine`: logits are 10 times the cosines between features and class rows.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.ERACE(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    classifier: Literal["linear", "cosine"] = "linear"

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
        ),
        "best": Preset(
            {
                "mirror": True,
                "augment": "crop-grey-reflected",
                "lr": 3e-4,
                "average": "arrivals",
                "mirror_scores": True,
                "norms": "memory",
                "distil": 1.0,
                "distil_from": "growing",
                "repeats": 3,
            },
            "held-out CIFAR100 and MNIST: results/best.md, results/norms.md",
            unmirrored={"mirror": False, "mirror_scores": False},
        ),
    }

    def make_head(self, features: int, rng: torch.Generator) -> Head:
        if self.classifier == "linear":
            return super().make_head(features, rng)
        return cosine_head(features, rng)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                                     (b)
        replay = self.store.draw(self.replay, fallback=stream)  # X^buf                        (r)
        stream_out, replay_out = self.forward(stream, replay, apart=True)  # logits  (b, C) (r, C)

        present = one_hot(y, len(self.seen)).any(dim=0)  # C(X^new), a mask                    (C)
        stream_loss = cross_entropy(stream_out, among=present)
        replay_loss = cross_entropy(replay_out, among=self.seen)
        loss = stream_loss + replay_loss

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, stream_out, replay_out, stream=stream_loss, replay=replay_loss)
