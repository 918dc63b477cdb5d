"""Where those settings of `gsa` act that the paper's objective does not need: other readings of the
paper, what the released code does, and ablations.

`objective` is `GSA.by_the_paper` with a place for each of them; a learner uses it as soon as one of
them is not as in `PAPER`. They were compared with the paper's letter on CIFAR100:

    forwards, statistics, new_classes    readings         results/archive/readings-cifar100.md
    update                               a reading        not measured
    current                              released code    results/tuning-cifar100.md
    current with even                    a footnote       results/tables/ablations.md
    weights, without, sampling           ablations        results/tables/ablations.md
    rivals                               an ablation      the same, and results/recipe.md

With `new_classes="task"` T3 is 0 in the first task, as T2 is: what is left is cross-entropy on the
stream, without replay, unless `current` samples of the memory join X^new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onepass.base.parts import Output, Samples
from onepass.functional.imbalance import class_weight
from onepass.functional.losses import mean, sample_cross_entropy

if TYPE_CHECKING:
    from onepass.methods.gsa import GSA, Objective

PAPER: dict[str, Any] = {
    "current": 0,
    "even": False,
    "sampling": "balanced",
    "forwards": "joint",
    "statistics": "all",
    "update": "before",
    "weights": "adaptive",
    "new_classes": "batch",
    "rivals": "side",
    "without": None,
}
TERM_OF = {"new": "T1", "previous": "T2", "cross": "T3"}  # as the paper's ablations call them


def asked_for(gsa: GSA) -> bool:
    """Returns whether a setting asks for anything but the paper's objective."""
    return any(getattr(gsa, name) != value for name, value in PAPER.items())


def objective(gsa: GSA, stream: Samples) -> Objective:
    """Returns what `GSA.by_the_paper` returns, with all settings."""
    x_new, mix = batches(gsa, stream)
    stream_out, mix_out = gsa.forward(x_new, mix, apart=gsa.forwards == "separate")
    w, log_v = measured_rates(gsa, stream_out, mix_out)
    arrived = gsa.new if gsa.new_classes == "task" else gsa.arrived(stream_out)
    terms = gsa.terms(stream_out, mix_out, w, log_v, arrived)
    if gsa.rivals == "all":
        terms |= against_all(gsa, mix_out, w)
    if gsa.without:
        del terms[TERM_OF[gsa.without]]
    return terms, (stream_out, mix_out)


def batches(gsa: GSA, stream: Samples) -> tuple[Samples, Samples]:
    """Returns X^new, which samples of the memory may join, and X^mix."""
    if gsa.sampling == "random":
        return stream, gsa.store.draw(gsa.mix, fallback=stream)
    if not gsa.current:
        return stream, gsa.store.mixed(stream)
    mix, current = gsa.store.mixed_and_current(stream, gsa.current)
    return stream.then(evened(stream, current, gsa.new) if gsa.even else current), mix


def evened(stream: Samples, current: Samples, new: Tensor) -> Samples:
    """Returns `current` with as many of each new class at weight 1 as the stream batch has fewer
    of it than of the most frequent one, and the rest at weight 0."""
    counts = torch.zeros(len(new), device=new.device).index_add_(0, stream.y, stream.weight) * new
    lacking = (counts.max() - counts)[current.y]  # of each sample's class             (current)
    same = (current.y.unsqueeze(1) == current.y) * current.weight  # who counts           (n, n)
    rank = same.tril(diagonal=-1).sum(dim=1)  # how many of its class come before it   (current)
    return current._replace(weight=current.weight * (rank < lacking))


def measured_rates(gsa: GSA, stream_out: Output, mix_out: Output) -> tuple[Tensor, Tensor]:
    """Returns w and log v for this step, (C) both, with the step's gradients in the sums behind
    them or, with `update="after"`, without."""
    measured = (mix_out,) if gsa.statistics == "mix" else gsa.trained(stream_out, mix_out)
    if gsa.update == "before":
        gsa.balance.update(measured, gsa.seen)
        return rates(gsa)
    without_this_step = rates(gsa)
    gsa.balance.update(measured, gsa.seen)
    return without_this_step


def rates(gsa: GSA) -> tuple[Tensor, Tensor]:
    """Returns w and log v as `weights` has them, (C) both."""
    w, log_v = gsa.rates()
    if gsa.weights == "inverse":
        w = class_weight(-gsa.balance.negative, gsa.balance.positive).float()
    elif gsa.weights in ("v", "none"):
        w = torch.ones_like(w)
    if gsa.weights in ("w", "none"):
        log_v = torch.zeros_like(log_v)
    return w, log_v


def against_all(gsa: GSA, mix_out: Output, w: Tensor) -> dict[str, Tensor]:
    """Returns T2 and T3 with all classes that are seen in the denominator, and no v."""
    each = w[mix_out.y] * sample_cross_entropy(mix_out, among=gsa.seen)  # (m)
    of_old = mix_out.weight * gsa.old[mix_out.y]
    return {"T2": mean(each, of_old), "T3": mean(each, mix_out.weight)}
