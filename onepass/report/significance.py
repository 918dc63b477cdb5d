"""Paired tests of one row against another, over the seeds that both have.

A seed fixes the stream, so runs with the same seed form a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEWEST = 3  # pairs for a t-test; two tell almost nothing about the deviation
FEWEST_FOR_RANKS = 6  # with fewer pairs the signed-rank test cannot reach 0.05
DIGITS = 9  # decimals of a difference; rounding errors in later ones would make equal ones differ
# The columns that describe the pairs and the columns of the tests, each with its explanation
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
    """The differences of the pairs, ours less theirs, and the p-values of both tests.

    A p-value is None if there are too few pairs for its test (for Wilcoxon's: pairs that differ),
    or if all differences are equal.
    """

    differences: tuple[float, ...]
    t_test: float | None
    wilcoxon: float | None


def explain_columns(columns: Sequence[str]) -> str:
    """Returns an explanation of those columns that belong to paired tests; "" if none does.

    >>> explain_columns(["method", "pairs", "p (t-test)"])
    'Pairs: seeds that both have. p: two-sided, by the paired t-test (3 pairs or more); not
    corrected for the number of comparisons.'
    """
    # the text of `difference` explains `pairs` too
    sentences = [COUNTED[name] for name in COUNTED if name in columns][:1]
    if tests := [TESTS[name] for name in TESTS if name in columns]:
        how = " and by ".join(tests)
        sentences.append(f"p: two-sided, by {how}; not corrected for the number of comparisons.")
    return " ".join(sentences)


def compare_paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> PairedComparison:
    """Returns the comparison of two rows, whose values are given by seed. Seeds that only one row
    has are left out.

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
    if sum(difference != 0 for difference in differences) >= FEWEST_FOR_RANKS:
        wilcoxon = float(stats.wilcoxon(differences).pvalue)
    return PairedComparison(differences, t_test, wilcoxon)
