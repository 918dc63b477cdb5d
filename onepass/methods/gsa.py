"""Gradient self-adaptation (GSA): replay whose loss is split into terms within and across tasks, in
which classes weigh by the measured imbalance of their gradients.

Paper: Guo, Liu, Zhao, "Dealing with Cross-Task Class Discrimination in Online Continual Learning",
CVPR 2023. N are the classes that are new since the last boundary, O the older ones; X^new is the
stream batch, S(X^new) its classes, X^mix a batch of `mix` samples in which all classes have the
same share, X^buf its samples of O:

    T1 = E_{X^new}      -log e^{o_y} / sum_{c in N} e^{o_c}                  eq. (15), first term
    T2 = E_{X^buf} -w_y  log e^{o_y} / sum_{c in O} e^{o_c}                  eq. (14)
    T3 = E_{X^mix} -w_y  log e^{o_y} / (sum_{c in O} e^{o_c} + e^{o_y})      eq. (12), y in S(X^new)
                         log e^{o_y} / (sum_{c in N} v_c e^{o_c} + e^{o_y})  any other y
    L  = T1 + T2 + T3                                                        eq. (15)
    w_c = 2 / (1 + exp A-PN(c)),   v_c = -1 / PN(t, c)                       eq. (13)

PN and A-PN, eq. (5) and (6), are in `functional.imbalance`: the sum of the gradients that push the
logit of c down, divided by that of those that push it up, in this task and in all.

Decisions where the paper is silent or ambiguous:

- A class is new or old by when it was first seen. A stream sample of an old class counts in T2 and
  T3, not in T1, and takes one of the old places of X^mix.
- N_new = floor(mix |N| / |seen| + 1/2), at least 1, with classes counted as seen so far. The new
  samples of X^mix come from the stream batch in its order, then from the memory (up to `fill`); the
  old ones are drawn; a batch that stays short is left short. X^buf is no draw of its own.
- X^new and X^mix have one joint forward, so that BatchNorm sees them as one batch.
- The rates have the gradients of all that trains, this step's too, by the plain softmax over the
  classes seen, on the same augmented views and forward. No gradient flows through w or v, and v has
  no bound. Where a rate is not defined, v is 1 and w that of balance, 2 / (1 + 1/e).
- In the first task O is empty: T2 is 0, T3 trains the samples of X^mix whose class X^new lacks, and
  the rates are of X^new alone.

Other readings of the paper, ablations and what the released code does are settings; they act in
`gsa_variants`, which says where each was measured. `tuned` and `best` have some of them.

Departures from the released code: see `gsa_released`, which computes what that code computes.
Cost: batch + current + mix images, forward and backward. Kept: raw sample and label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from onepass.base.parts import ImageCount, Output, Samples, Step
from onepass.base.settings import Preset, require
from onepass.functional.imbalance import Balance, class_weight, log_class_scale
from onepass.functional.losses import cross_entropy, mean, sample_cross_entropies_against
from onepass.learning.registry import method
from onepass.learning.replay import WithMemory
from onepass.memory import MixedReservoir
from onepass.methods import gsa_variants

Objective = tuple[dict[str, Tensor], tuple[Output, ...]]
"""The terms of the loss by name, and the outputs that they are of."""

BEST: dict[str, Any] = {
    "head": "frozen",
    "mirror": True,
    "augment": "crop-grey-reflected",
    "lr": 3e-4,
    "current": 22,
    "statistics": "mix",
    "new_classes": "task",
    "average": "arrivals",
    "mirror_scores": True,
    "norms": "memory",
    "distil": 1.0,
    "distil_from": "growing",
    "repeats": 2,
}


def within_and_across(
    out: Output, old: Tensor, new: Tensor, log_v: Tensor, arrived: Tensor
) -> Tensor:
    """Returns -log e^{o_y} / (e^{o_y} + sum over the rivals) of each sample, before w, by eq. (14)
    and by eq. (12), (2, m). By the one the rivals are the old classes, by the other those of the
    other side: the old ones for a class that arrived, else the new ones, scaled by v."""
    against_old, against_new = old.log(), new.log() + log_v  # logs of a mask, of a mask times v
    other_side = torch.where(arrived[out.y].unsqueeze(1), against_old, against_new)  # (m, C)
    rivals = torch.stack([against_old.expand_as(other_side), other_side])  # (2, m, C)
    return sample_cross_entropies_against(out, rivals)


@method(
    "gsa",
    paper="Guo et al., Dealing with Cross-Task Class Discrimination in Online Continual Learning",
    year=2023,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class GSA(WithMemory):
    """GSA by the paper's equations.

    Parameters
    ----------
    memory
        How many samples are kept.
    mix
        The size of X^mix.
    fill
        How many samples of the current classes X^mix may take from the memory; none: no limit.
    current
        How many samples of the current classes join X^new from the memory; the released code has
        22.
    forwards
        One joint forward of X^new and X^mix, or separate ones.
    statistics
        Which samples feed the rates: `all` that the step trains, or those of X^mix only.
    new_classes
        S(X^new) of eq. (12): the classes of X^new (`batch`), or all since the boundary (`task`).
    update
        Whether the rates are updated `before` or `after` the step that uses them.
    weights
        `adaptive`, `w` or `v` alone (the other is 1), `none` (both are 1), or `inverse`: w of the
        inverse ratio, 1 / A-PN, which is what the released code looks at.
    rivals
        The classes in the denominators of T2 and T3: those of a `side`, old or new, or `all` that
        are seen (and no v). With `weights="none"` T2 and T3 are then the simple cross-entropies of
        X^buf and X^mix.
    without
        A term that is left out: the `new` (T1), the `previous` (T2) or the `cross` one (T3).
    sampling
        X^mix is `balanced`, classes having their shares, or `random`: a plain draw from the memory.
    even
        X^new is made even over the new classes: of the `current` samples those train that bring
        their class up to the most frequent one (the paper's footnote).

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.GSA(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    mix: int = 64
    fill: int | None = None
    # all others act in `gsa_variants`
    current: int = 0
    forwards: Literal["joint", "separate"] = "joint"
    statistics: Literal["all", "mix"] = "all"
    new_classes: Literal["batch", "task"] = "batch"
    update: Literal["before", "after"] = "before"
    weights: Literal["adaptive", "w", "v", "none", "inverse"] = "adaptive"
    rivals: Literal["side", "all"] = "side"
    without: Literal["new", "previous", "cross"] | None = None
    sampling: Literal["balanced", "random"] = "balanced"
    even: bool = False

    store: MixedReservoir = field(init=False)
    balance: Balance = field(init=False)
    objective: Callable[[GSA, Samples], Objective] = field(init=False)
    presets: ClassVar[dict[str, Preset]] = {
        "tuned": Preset(
            {
                "head": "frozen",
                "mirror": True,
                "lr": 3e-4,
                "current": 22,
                "forwards": "separate",
                "statistics": "mix",
                "new_classes": "task",
            },
            "best on a held-out tenth of CIFAR100's training data, M=1000 and 5000, one seed: "
            "results/tuning-cifar100.md; separate forwards, M=1000, three seeds: "
            "results/archive/readings-cifar100.md",
        ),
        "best": Preset(
            BEST,
            "held-out CIFAR100, CIFAR10, MNIST: results/best.md, results/norms.md",
            unmirrored={"mirror": False, "mirror_scores": False, "repeats": 4},
        ),
        "fast": Preset(
            {**BEST, "repeats": 1},
            "as best, half the cost",
            unmirrored={"mirror": False, "mirror_scores": False, "repeats": 2},
        ),
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "mix", self.mix >= 2, "at least 2")
        require(self, "fill", self.fill is None or self.fill >= 1, "at least 1, or none")
        most = self.mix if self.fill is None else self.fill
        require(self, "current", 0 <= self.current <= most, f"between 0 and {most} (fill, or mix)")
        require(self, "even", self.current > 0 or not self.even, "false where current is 0")
        random = self.sampling == "random"
        require(self, "current", not (random and self.current), "0 where sampling is random")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().build(shape, dtype)
        self.balance = Balance(len(self.seen), self.trainer.torch_device)
        varied = gsa_variants.asked_for(self)
        self.objective = gsa_variants.objective if varied else GSA.by_the_paper

    def make_store(
        self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator
    ) -> MixedReservoir:
        return MixedReservoir(self.memory, shape, dtype, rng, size=self.mix, fill=self.fill)

    def cost(self, batch: int) -> ImageCount:
        return ImageCount(trained=(batch + self.current + self.mix) * self.views_per_sample)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                          (b)
        terms, outputs = self.objective(self, stream)  # `by_the_paper`, or the variant asked for
        loss = reduce(torch.add, terms.values())  # eq. (15)

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, *outputs, **terms)

    def by_the_paper(self, stream: Samples) -> Objective:
        """Returns T1, T2 and T3 of a stream batch X^new, and the outputs that they are of."""
        mix = self.store.mixed(stream)  # X^mix                                          (m)
        stream_out, mix_out = self.forward(stream, mix)  # logits              (b, C) (m, C)
        self.balance.update(self.trained(stream_out, mix_out), self.seen)  # eq. (5), eq. (6)
        w, log_v = self.rates()  # eq. (13)                                          (C) (C)
        arrived = self.arrived(stream_out)  # S(X^new)                                   (C)
        return self.terms(stream_out, mix_out, w, log_v, arrived), (stream_out, mix_out)

    def terms(
        self, stream_out: Output, mix_out: Output, w: Tensor, log_v: Tensor, arrived: Tensor
    ) -> dict[str, Tensor]:
        """Returns T1, T2 and T3."""
        new, old = self.new, self.old  # N and O                                     (C) (C)
        w = w[mix_out.y]  # of each sample's class                                       (m)
        of_new = stream_out._replace(weight=stream_out.weight * new[stream_out.y])
        t1 = cross_entropy(of_new, among=new)  # eq. (15), first term
        within, across = w * within_and_across(mix_out, old, new, log_v, arrived)  # (m) (m)
        t2 = mean(within, mix_out.weight * old[mix_out.y])  # eq. (14), over X^buf
        t3 = mean(across, mix_out.weight)  # eq. (12)
        return {"T1": t1, "T2": t2, "T3": t3}

    def trained(self, stream_out: Output, mix_out: Output) -> tuple[Output, Output]:
        """Returns what feeds the rates: X^new and X^mix, which has no weight in the first task,
        where at most a few of its samples train."""
        return stream_out, mix_out._replace(weight=mix_out.weight * self.old.any())

    def rates(self) -> tuple[Tensor, Tensor]:
        """Returns w and log v, eq. (13), for every row of the head."""
        sums = self.balance
        w = class_weight(sums.positive, sums.negative)
        log_v = log_class_scale(sums.task_positive, sums.task_negative)
        return w.float(), log_v.float()

    def arrived(self, stream_out: Output) -> Tensor:
        """Returns S(X^new), the new classes that the stream batch has, as a mask (C)."""
        new, y, weight = self.new, stream_out.y, stream_out.weight
        return new & (torch.zeros(len(new), device=new.device).index_add_(0, y, weight) > 0)
