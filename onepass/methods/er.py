"""Experience replay: train on the stream batch together with a random draw from a reservoir.

Paper: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019. X^new is the stream
batch. X^buf is a draw from the memory, current classes included:

    L = E_{X^new} -log p_y + E_{X^buf} -log p_y        loss="sum": two means
    L = E_{X^new u X^buf} -log p_y                     loss="mean": one mean over all
    L = E_{X^mix} -log p_y                             `balanced`: see below

Departures: the softmax runs over the classes seen so far. Reference codes differ in two places that
change results, so both are settings. `forwards` is one joint forward pass of stream and replay or
two separate ones, which changes the statistics that BatchNorm sees. `loss` is the sum of two means
or one mean. With batches of 10 and 64 replayed samples, stream and replay weigh 1 : 1 in the sum
and 10 : 64 in the mean. There are two conventions, and the default is neither of them:

    forwards="separate", loss="sum"     RaptorMai/online-continual-learning, AML
    forwards="joint",    loss="mean"    mammoth, MKD
    forwards="joint",    loss="sum"     the default

On CIFAR10 at 16 x 16 (25 000 images, M=500, two seeds) these end at 33.6, 40.2 and 39.3.

With `balanced`, the step trains one batch X^mix of this size instead. Every class has the same
share of it, as in section 4 of GSA's paper ("dealing with data imbalance"). N are the classes that
are new since the last boundary. N_new = max(floor(balanced |N| / |seen| + 1/2), 1) samples of new
classes come from the stream; its other samples of new classes are not trained. The rest are samples
of old classes: those of the stream batch, then random ones from the memory. Slots that these
sources cannot fill stay empty.

Cost: batch + replay images (or `balanced`, if set), forward and backward. Kept: raw samples and
labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.parts import ImageCount, Samples, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import cross_entropy, normalised_weights
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.memory import MixedReservoir, Store


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
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for each stream batch.
    forwards
        One joint forward pass of stream and replay, or separate ones.
    loss
        `sum` of the means over stream and replay, as in RaptorMai's code, or one `mean` over all
        samples, as in mammoth.
    balanced
        Size of one batch X^mix in which all classes have equal shares, trained instead of stream
        and replay; none: train stream and replay.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.ER(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    forwards: Literal["joint", "separate"] = "joint"
    loss: Literal["sum", "mean"] = "sum"
    balanced: int | None = None

    presets: ClassVar[dict[str, Preset]] = {
        "tuned": Preset(
            {"head": "frozen", "mirror": True, "lr": 5e-4},
            "best of 4 on a held-out tenth of CIFAR100's training data, M=1000, one seed: "
            "results/tuning-cifar100.md",
            unmirrored={"mirror": False},
        ),
        "best": Preset(
            {
                "head": "frozen",
                "mirror": True,
                "augment": "crop-grey-reflected",
                "lr": 5e-4,
                "average": "growing",
                "mirror_scores": True,
                "norms": "memory",
                "distil": 1.0,
                "repeats": 3,
            },
            "held-out CIFAR100 and MNIST: results/best.md, results/norms.md",
            unmirrored={"mirror": False, "mirror_scores": False},
        ),
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(
            self, "balanced", self.balanced is None or self.balanced >= 2, "at least 2, or none"
        )

    def make_store(self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> Store:
        if self.balanced is None:
            return super().make_store(shape, dtype, rng)
        return MixedReservoir(self.memory, shape, dtype, rng, size=self.balanced, fill=0)

    def cost(self, batch: int) -> ImageCount:
        own = super().cost(batch)
        return (
            own
            if self.balanced is None
            else ImageCount(trained=self.balanced * self.views_per_sample)
        )

    def step(self, x: Tensor, y: Tensor) -> Step:
        if isinstance(self.store, MixedReservoir):
            return self._balanced_step(self.store, x, y)
        stream = Samples.of(x, y)  # X^new                                                      (b)
        replay = self.store.draw(self.replay, fallback=stream)  # X^buf                         (r)
        outputs = self.forward(stream, replay, apart=self.forwards == "separate")  # (b, C) (r, C)

        out = outputs.together  # logits of both                                         (b + r, C)
        logits = out.logits + self.log_seen  # -inf for classes not seen yet             (b + r, C)
        each = F.cross_entropy(logits, out.y, reduction="none")  # -log p_y                 (b + r)
        if self.loss == "sum":
            # 1/b for stream samples, 1/r for replayed ones                                 (b + r)
            shares = torch.cat([normalised_weights(batch.weight) for batch in outputs])
        else:
            shares = normalised_weights(out.weight)  # 1 / (b + r)
        loss = torch.dot(each, shares)

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, *outputs)

    def _balanced_step(self, store: MixedReservoir, x: Tensor, y: Tensor) -> Step:
        mix = store.mixed(Samples.of(x, y))  # batch X^mix  (m)
        (mix_out,) = self.forward(mix)  # logits         (m, C)
        loss = cross_entropy(mix_out, among=self.seen)

        self.keep(x, y)
        self.descend(loss)
        # reported like stream and replay: new classes first, which come from the stream alone
        is_new = self.new[mix_out.y]
        sides = (mix_out._replace(weight=mix_out.weight * side) for side in (is_new, ~is_new))
        return Step.of(loss, *sides)
