"""Checks Proposition 1 of the GSA paper on the logits of real runs.

The proposition says that the decomposed loss, a sum of one loss for new and one for old classes, is
never below the cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from onepass.gsa_paper.claims import Observation
from onepass.gsa_paper.rates import read_probe_lines
from onepass.runs.result import Result


class DecomposedLoss(NamedTuple):
    """The cross-entropy `ce` and the decomposed loss of a sample, and their difference `gap` by its
    closed form."""

    ce: float
    decomposed: float
    gap: float
    new: bool  # whether the sample's class is new
    task: int  # in which it was trained


def decompose(
    logits: Sequence[float], y: int, new: Sequence[bool], task: int = 0
) -> DecomposedLoss:
    """Returns both losses of a sample of class y. `new` holds for each class whether it is new.

    Let e_c = exp(logit c). A is the sum of e_c over the classes of y's side (new or old, y
    included). B is the sum over the other side and y. S is the sum over all classes. Then
    L_ce = -log(e_y / S) and L_decom = -log(e_y / A) - log(e_y / B). Their difference is

        log(1 + (A - e_y)(B - e_y) / (e_y (A + B - e_y))) >= 0

    >>> gap = decompose([0.0, 0.0, 0.0], 0, [True, True, False]).gap
    >>> round(float(np.exp(gap)), 6)  # 1 + 1/3
    1.333333
    """
    o = np.asarray(logits, dtype=np.float64) - logits[y]  # the logits, shifted so that e_y = 1
    own, others = np.asarray(new) == new[y], np.arange(len(o)) != y
    # a = log(A - e_y) and b = log(B - e_y), minus infinity for an empty sum; logs avoid overflow
    a, b = (np.logaddexp.reduce(o[side & others]) for side in (own, ~own))
    gap = np.logaddexp(0, a + b - np.logaddexp.reduce([0, a, b]))
    both = np.logaddexp(0, a) + np.logaddexp(0, b)
    return DecomposedLoss(
        float(np.logaddexp.reduce(o)), float(both), float(gap), bool(new[y]), task
    )


def decompose_run(result: Result) -> list[DecomposedLoss]:
    """Returns both losses of every trained sample whose logits the probe `logits` recorded."""
    losses = []
    for line in read_probe_lines(result, "logits"):
        classes = line["classes"]
        new = [label in line["new"] for label in classes]
        for batch in line["batches"]:
            rows = zip(batch["logits"], batch["y"], batch["weight"], strict=True)
            losses += [
                decompose(logits, classes.index(y), new, line["task"])
                for logits, y, weight in rows
                if weight  # padding has none
            ]
    return losses


def observations(runs: str, samples: Sequence[DecomposedLoss]) -> list[Observation]:
    """Returns the verdicts on the two statements of Proposition 1 over all samples; `runs` names
    the runs."""
    gaps = [sample.decomposed - sample.ce for sample in samples]
    error = max(abs(gap - sample.gap) for gap, sample in zip(gaps, samples, strict=True))
    rounding = 1e-12 * max(1.0, *(sample.decomposed for sample in samples))
    sound = min(gaps) >= -rounding  # a gap may be below 0 by rounding
    sides: dict[str, list[float]] = {"new": [], "old": []}
    for sample in samples:
        sides["new" if sample.new else "old"].append(sample.gap)
    means = " and ".join(
        f"{mean(gaps_of_side):.3g} ({side} classes)"
        for side, gaps_of_side in sides.items()
        if gaps_of_side
    )
    count = f"{len(samples)} samples"
    smallest = max(0.0, min(gaps)) if sound else min(gaps)
    return [
        Observation(
            "5.1, Prop. 1",
            "L_decom >= L_ce for every sample",
            "smallest and mean gap",
            runs,
            f"smallest {smallest:.2g}, mean {means}; {count}",
            "confirmed" if sound else "contradicted",
        ),
        Observation(
            "5.1, Prop. 1",
            "L_decom - L_ce = log(1 + (A - e)(B - e) / (e (A + B - e)))",
            "largest difference (< 1e-6)",
            runs,
            f"largest {error:.2g}; {count}",
            "confirmed" if error < 1e-6 else "contradicted",
        ),
    ]
