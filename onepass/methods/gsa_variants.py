"""The objective of `gsa` under its settings that are not the paper's: other readings of the paper,
the behaviour of the released code, and ablations.

`objective` computes what `GSA.paper_objective` does, and obeys all of these settings. A learner
uses it if at least one setting differs from `PAPER`. Each setting below was compared with the
paper's value on CIFAR100, in the file on its line, or not measured:

    forwards, statistics, new_classes    readings         results/archive/readings-cifar100.md
    update                               a reading        not measured
    current                              released code    results/tuning-cifar100.md
    current with even                    a footnote       results/tables/ablations.md
    weights, without, sampling           ablations        results/tables/ablations.md
    rivals                               an ablation      the same, and results/recipe.md

With `new_classes="task"`, T3 is 0 in the first task, as T2 is. The loss is then plain cross-entropy
on the stream, without replay, unless `current` samples of the memory join X^new.
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

# values of the settings with which `objective` equals `GSA.paper_objective`
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
TERM_OF = {"new": "T1", "previous": "T2", "cross": "T3"}  # the term that each `without` removes


def departs_from_paper(gsa: GSA) -> bool:
    """Returns whether any setting differs from the paper's objective."""
    return any(getattr(gsa, name) != value for name, value in PAPER.items())


def objective(gsa: GSA, stream: Samples) -> Objective:
    """Returns the terms of the loss and the outputs, like `GSA.paper_objective`, under the
    learner's settings."""
    x_new, mix = stream_and_mix(gsa, stream)
    stream_out, mix_out = gsa.forward(x_new, mix, apart=gsa.forwards == "separate")
    w, log_v = measured_rates(gsa, stream_out, mix_out)
    arrived = gsa.new if gsa.new_classes == "task" else gsa.classes_in_batch(stream_out)
    terms = gsa.terms(stream_out, mix_out, w, log_v, arrived)
    if gsa.rivals == "all":
        terms |= against_all(gsa, mix_out, w)
    if gsa.without:
        del terms[TERM_OF[gsa.without]]
    return terms, (stream_out, mix_out)


def stream_and_mix(gsa: GSA, stream: Samples) -> tuple[Samples, Samples]:
    """Returns X^new and X^mix. If `current` is not 0, X^new is the stream batch followed by
    `current` samples of new classes from the memory."""
    if gsa.sampling == "random":
        return stream, gsa.store.draw(gsa.mix, fallback=stream)
    if not gsa.current:
        return stream, gsa.store.mixed(stream)
    mix, current = gsa.store.mixed_and_current(stream, gsa.current_drawn)
    return stream.then(even_out(stream, current, gsa.new) if gsa.even else current), mix


def even_out(stream: Samples, current: Samples, new: Tensor) -> Samples:
    """Returns `current` with weights that even out the new classes of the stream batch.

    Each class lacks the samples by which the most frequent new class of the batch exceeds it. So
    many of its samples in `current`, the first ones, keep their weight. The rest get weight 0."""
    counts = torch.zeros(len(new), device=new.device).index_add_(0, stream.y, stream.weight) * new
    lacking = (counts.max() - counts)[current.y]  # per sample, by class      (current)
    same = (current.y.unsqueeze(1) == current.y) * current.weight  # same class  (n, n)
    rank = same.tril(diagonal=-1).sum(dim=1)  # earlier ones of its class     (current)
    return current._replace(weight=current.weight * (rank < lacking))


def measured_rates(gsa: GSA, stream_out: Output, mix_out: Output) -> tuple[Tensor, Tensor]:
    """Adds the step's gradients to the sums. Returns w and log v for this step, (C) each.

    With `update="after"` these do not contain the step's own gradients."""
    measured = (mix_out,) if gsa.statistics == "mix" else gsa.outputs_for_rates(stream_out, mix_out)
    if gsa.update == "before":
        gsa.balance.update(measured, gsa.seen)
        return rates(gsa)
    before_step = rates(gsa)
    gsa.balance.update(measured, gsa.seen)
    return before_step


def rates(gsa: GSA) -> tuple[Tensor, Tensor]:
    """Returns w and log v under the setting `weights`, (C) each."""
    w, log_v = gsa.rates()
    if gsa.weights == "inverse":
        w = class_weight(-gsa.balance.negative, gsa.balance.positive).float()
    elif gsa.weights in ("v", "none"):
        w = torch.ones_like(w)
    if gsa.weights in ("w", "none"):
        log_v = torch.zeros_like(log_v)
    return w, log_v


def against_all(gsa: GSA, mix_out: Output, w: Tensor) -> dict[str, Tensor]:
    """Returns T2 and T3 with all seen classes in the denominators, weighted by w, without v."""
    each = w[mix_out.y] * sample_cross_entropy(mix_out, among=gsa.seen)  # (m)
    old_weight = mix_out.weight * gsa.old[mix_out.y]  # X^buf
    return {"T2": mean(each, old_weight), "T3": mean(each, mix_out.weight)}
