"""Experience replay: train on the stream batch together with a random draw from a reservoir.

Paper: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.
Update rule, for a stream batch X^new and a draw X^buf from the memory (current classes included):

    L = E_{X^new} -log p_y + E_{X^buf} -log p_y        loss="sum": two means
    L = E_{X^new u X^buf} -log p_y                     loss="mean": one mean over all

Departures: the softmax runs over the classes seen so far. Reference codes differ in two places
that change results, so both are arguments: one joint forward of stream and replay or two separate
ones (BatchNorm sees other statistics), and the sum of two means or one mean (new samples weigh
1 : 1 against 10 : 64).
Cost: batch + replay images, forward and backward. Kept: raw sample and label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from onepass.losses import fractions, sample_cross_entropy
from onepass.parts import Output, Preset, Step
from onepass.registry import method
from onepass.replay import Replay


@method(
    "er",
    paper="Chaudhry et al., On Tiny Episodic Memories in Continual Learning",
    year=2019,
)
@dataclass(kw_only=True, eq=False)
class ER(Replay):
    """Experience replay.

    Parameters
    ----------
    memory
        How many samples are kept.
    replay
        How many of them are trained with each stream batch.
    forwards
        One joint forward of stream and replay, or separate ones.
    loss
        `sum` of the two means, or one `mean` over all samples.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.ER(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    forwards: Literal["joint", "separate"] = "joint"
    loss: Literal["sum", "mean"] = "sum"

    presets: ClassVar[dict[str, Preset]] = {
        "tuned": Preset(
            {"head": "frozen", "mirror": True, "lr": 5e-4},
            "best of 4 on a held-out tenth of CIFAR100's training data, M=1000, one seed: "
            "results/tuning-cifar100.md",
        )
    }

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = self.as_samples(x, y)  # X^new                                       (b)
        replay = self.store.draw(self.replay, fallback=stream)  # X^buf               (r)
        forward = self.forward if self.forwards == "joint" else self.forward_apart
        stream_out, replay_out = forward(stream, replay)  # logits             (b, C) (r, C)

        outputs = (stream_out, replay_out)
        each = sample_cross_entropy(Output.of_all(outputs), among=self.seen)  # -log p_y  (b + r)
        weights = [out.weight for out in outputs]
        if self.loss == "sum":
            shares = torch.cat([fractions(weight) for weight in weights])  # of each mean  (b + r)
        else:
            shares = fractions(torch.cat(weights))
        loss = torch.dot(each, shares)

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, stream_out, replay_out)
