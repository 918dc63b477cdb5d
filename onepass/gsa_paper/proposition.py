"""Proposition 1 of the GSA paper on the logits of real runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from onepass.gsa_paper.claims import Observation
from onepass.gsa_paper.rates import read_probe_lines
from onepass.runs.result import Result


class DecomposedLoss(NamedTuple):
    """Of one sample: the cross-entropy, the decomposed loss, and the gap by its closed form."""

    ce: float
    decomposed: float
    gap: float
    new: bool
    task: int


def decompose(
    logits: Sequence[float], y: int, new: Sequence[bool], task: int = 0
) -> DecomposedLoss:
    """L_ce = -log e_y / sum_all; L_decom = -log e_y / A - log e_y / B, with A the sum of e^o over
    y's own side and B that over the other side and y; their difference is

        log(1 + (A - e_y)(B - e_y) / (e_y (A + B - e_y))) >= 0

    >>> gap = decompose([0.0, 0.0, 0.0], 0, [True, True, False]).gap
    >>> round(float(np.exp(gap)), 6)  # 1 + 1/3
    1.333333
    """
    o = np.asarray(logits, dtype=np.float64) - logits[y]  # then e_y = 1
    own, others = np.asarray(new) == new[y], np.arange(len(o)) != y
    # log (A - e_y) and log (B - e_y), minus infinity of nobody: no number is too large for it
    a, b = (np.logaddexp.reduce(o[side & others]) for side in (own, ~own))
    gap = np.logaddexp(0, a + b - np.logaddexp.reduce([0, a, b]))
    both = np.logaddexp(0, a) + np.logaddexp(0, b)
    return DecomposedLoss(
        float(np.logaddexp.reduce(o)), float(both), float(gap), bool(new[y]), task
    )


def decompose_run(result: Result) -> list[DecomposedLoss]:
    """Of every sample that the logits probe kept and that was trained."""
    found = []
    for line in read_probe_lines(result, "logits"):
        classes = line["classes"]
        new = [label in line["new"] for label in classes]
        for batch in line["batches"]:
            rows = zip(batch["logits"], batch["y"], batch["weight"], strict=True)
            found += [
                decompose(logits, classes.index(y), new, line["task"])
                for logits, y, weight in rows
                if weight
            ]
    return found


def observations(runs: str, samples: Sequence[DecomposedLoss]) -> list[Observation]:
    gaps = [one.decomposed - one.ce for one in samples]
    error = max(abs(gap - one.gap) for gap, one in zip(gaps, samples, strict=True))
    rounding = 1e-12 * max(1.0, *(one.decomposed for one in samples))
    sound = min(gaps) >= -rounding  # what is less than 0 by rounding is 0
    sides: dict[str, list[float]] = {"new": [], "old": []}
    for one in samples:
        sides["new" if one.new else "old"].append(one.gap)
    means = " and ".join(
        f"{mean(found):.3g} ({side} classes)" for side, found in sides.items() if found
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
