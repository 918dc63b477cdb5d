"""Proposition 1 of the GSA paper on the logits of real runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from onepass.report.courses import heard
from onepass.report.evidence import Observation
from onepass.result import Result


class Decomposed(NamedTuple):
    """Of one sample: the cross-entropy, the decomposed loss, and the gap by its closed form."""

    ce: float
    decomposed: float
    gap: float
    new: bool
    task: int


def decomposed(logits: Sequence[float], y: int, new: Sequence[bool], task: int = 0) -> Decomposed:
    """L_ce = -log e_y / sum_all; L_decom = -log e_y / A - log e_y / B, with A the sum of e^o over
    y's own side and B that over the other side and y; their difference is

        log(1 + (A - e_y)(B - e_y) / (e_y (A + B - e_y))) >= 0

    >>> gap = decomposed([0.0, 0.0, 0.0], 0, [True, True, False]).gap
    >>> round(float(np.exp(gap)), 6)  # 1 + 1/3
    1.333333
    """
    o = np.asarray(logits, dtype=np.float64) - logits[y]  # then e_y = 1
    own = np.asarray(new) == new[y]
    a, b = np.logaddexp.reduce(o[own]), np.logaddexp.reduce(np.append(o[~own], 0.0))  # log A, log B
    rest_a, rest_b = (np.expm1(one) for one in (a, b))  # A - e_y and B - e_y
    gap = np.log1p(rest_a * rest_b / (1 + rest_a + rest_b))
    return Decomposed(float(np.logaddexp.reduce(o)), float(a + b), float(gap), bool(new[y]), task)


def decompositions(result: Result) -> list[Decomposed]:
    """Of every sample that the logits probe kept and that was trained."""
    found = []
    for line in heard(result, "logits"):
        classes = line["classes"]
        new = [label in line["new"] for label in classes]
        for batch in line["batches"]:
            rows = zip(batch["logits"], batch["y"], batch["weight"], strict=True)
            found += [
                decomposed(logits, classes.index(y), new, line["task"])
                for logits, y, weight in rows
                if weight
            ]
    return found


def observed(runs: str, samples: Sequence[Decomposed]) -> list[Observation]:
    gaps = [one.decomposed - one.ce for one in samples]
    error = max(abs(gap - one.gap) for gap, one in zip(gaps, samples, strict=True))
    rounding = 1e-12 * max(1.0, *(one.decomposed for one in samples))
    sides = [
        mean([one.gap for one in samples if one.new is side] or [0.0]) for side in (True, False)
    ]
    of = f"{len(samples)} samples"
    return [
        Observation(
            "5.1, Prop. 1",
            "L_decom >= L_ce for every sample",
            runs,
            f"smallest gap {min(gaps):.2g} of {of}; "
            f"mean {sides[0]:.3g} (new), {sides[1]:.3g} (old)",
            "confirmed" if min(gaps) >= -rounding else "contradicted",
        ),
        Observation(
            "5.1, Prop. 1",
            "L_decom - L_ce = log(1 + (A - e)(B - e) / (e (A + B - e)))",
            runs,
            f"largest difference {error:.2g} over {of} (< 1e-6)",
            "confirmed" if error < 1e-6 else "contradicted",
        ),
    ]
