"""Whether one row is better than another: over the seeds that both have, which saw one stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEWEST = 3  # pairs for a t-test: with two, any spread at all is luck
FEWEST_FOR_RANKS = 6  # with fewer the signed-rank test cannot come below 0.05 at all
DIGITS = 9  # of a difference: the next ones are of the arithmetic, and make equal ones differ
COUNTED = {
    "difference": "Difference: mean ± standard deviation over the seeds that both have (pairs).",
    "pairs": "Pairs: seeds that both have.",
}
TESTS = {
    "p (t-test)": f"the paired t-test ({FEWEST} pairs or more)",
    "p (Wilcoxon)": f"Wilcoxon's signed-rank test (of {FEWEST_FOR_RANKS} or more that differ: with "
    "fewer it cannot reach 0.05)",
}
COLUMNS = (*COUNTED, *TESTS)


@dataclass(frozen=True)
class PairedComparison:
    """Differences by seed, and how likely such ones are if there is none; None: too few pairs, or
    all of them the same."""

    differences: tuple[float, ...]
    t_test: float | None
    wilcoxon: float | None


def explain_columns(columns: Sequence[str]) -> str:
    """What those of a table's columns mean that compare; nothing if none does.

    >>> explain_columns(["method", "pairs", "p (t-test)"])
    'Pairs: seeds that both have. p: two-sided, by the paired t-test (3 pairs or more); not
    corrected for the number of comparisons.'
    """
    said = [COUNTED[name] for name in COUNTED if name in columns][:1]  # the first says both
    if tests := [TESTS[name] for name in TESTS if name in columns]:
        how = " and by ".join(tests)
        said.append(f"p: two-sided, by {how}; not corrected for the number of comparisons.")
    return " ".join(said)


def compare_paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> PairedComparison:
    """Two rows' values, by seed.

    >>> compare_paired({0: 3.0, 1: 5.0, 2: 4.0, 7: 9.0}, {0: 2.0, 1: 3.0, 2: 1.0}).differences
    (1.0, 2.0, 3.0)
    """
    shared = sorted(ours.keys() & theirs.keys())
    differences = tuple(round(ours[seed] - theirs[seed], DIGITS) for seed in shared)
    if len(set(differences)) < 2:
        return PairedComparison(differences, None, None)
    from scipy import stats

    t_test = wilcoxon = None
    if len(differences) >= FEWEST:
        t_test = float(stats.ttest_1samp(differences, 0.0).pvalue)
    if sum(one != 0 for one in differences) >= FEWEST_FOR_RANKS:
        wilcoxon = float(stats.wilcoxon(differences).pvalue)
    return PairedComparison(differences, t_test, wilcoxon)
