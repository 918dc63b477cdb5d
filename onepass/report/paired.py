"""Whether one row is better than another: over the seeds that both have, which saw one stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FEWEST = 3  # pairs for a t-test: with two, any spread at all is luck
FEWEST_FOR_RANKS = 6  # with fewer the signed-rank test cannot come below 0.05 at all
DIGITS = 9  # of a difference: the next ones are of the arithmetic, and make equal ones differ
HOW = (
    "difference: mean ± standard deviation over the seeds that both have (pairs). p: two-sided, by "
    f"the paired t-test ({FEWEST} pairs or more) and by Wilcoxon's signed-rank test (of "
    f"{FEWEST_FOR_RANKS} or more that differ: with fewer it cannot reach 0.05); not corrected for "
    "the number of comparisons."
)


@dataclass(frozen=True)
class Comparison:
    """Differences by seed, and how likely such ones are if there is none; None: too few pairs, or
    all of them the same."""

    differences: tuple[float, ...]
    t_test: float | None
    wilcoxon: float | None


def compared(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Comparison:
    """Two rows' values, by seed.

    >>> compared({0: 3.0, 1: 5.0, 2: 4.0, 7: 9.0}, {0: 2.0, 1: 3.0, 2: 1.0}).differences
    (1.0, 2.0, 3.0)
    """
    shared = sorted(ours.keys() & theirs.keys())
    differences = tuple(round(ours[seed] - theirs[seed], DIGITS) for seed in shared)
    if len(set(differences)) < 2:
        return Comparison(differences, None, None)
    from scipy import stats

    t_test = wilcoxon = None
    if len(differences) >= FEWEST:
        t_test = float(stats.ttest_1samp(differences, 0.0).pvalue)
    if sum(one != 0 for one in differences) >= FEWEST_FOR_RANKS:
        wilcoxon = float(stats.wilcoxon(differences).pvalue)
    return Comparison(differences, t_test, wilcoxon)
