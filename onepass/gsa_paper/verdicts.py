"""Decides how far our results reproduce the accuracies of the paper's Table 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onepass.gsa_paper.tables import Cells, printed_values
from onepass.report.rows import Spread
from onepass.runs.result import Result

CLOSE = 3.0  # points on either side of the published figure
FEWEST = 3  # seeds
CONFIDENCE = 0.95
REPRODUCED, HIGHER, LOWER = "reproduced", "higher", "lower"
UNDECIDED, ONE_SEED, NOT_RUN = "undecided", "one seed", "not run"
VERDICTS = (REPRODUCED, HIGHER, LOWER, UNDECIDED, ONE_SEED, NOT_RUN)


@dataclass(frozen=True)
class Judged:
    """A cell of Table 1: our spread (None without a run) less the published figure, in points."""

    method: str
    dataset: str
    memory: int
    spread: Spread | None
    published: float

    @property
    def gap(self) -> float | None:
        """How many points ours is above the published figure."""
        return None if self.spread is None else self.spread.mean - self.published

    @property
    def verdict(self) -> str:
        """The verdict, one of `VERDICTS`, by the 95 % t-interval of our mean and the band of
        `CLOSE` points around the published figure. An interval inside of it is reproduced, one
        outside of it higher or lower. All else is undecided, and so are fewer than `FEWEST` seeds.
        """
        if self.spread is None or self.gap is None:
            return NOT_RUN
        if self.spread.n == 1:
            return ONE_SEED
        if self.spread.n < FEWEST:
            return UNDECIDED
        half = half_interval(self.spread)
        if abs(self.gap) + half <= CLOSE:
            return REPRODUCED
        if abs(self.gap) - half > CLOSE:
            return HIGHER if self.gap > 0 else LOWER
        return UNDECIDED


def half_interval(spread: Spread) -> float:
    """Returns half the length of the 95 % t-interval of a mean over two runs or more.

    >>> round(half_interval(Spread(mean=20.0, deviation=1.0, n=3)), 2)  # 4.303 / sqrt(3)
    2.48
    """
    from scipy import stats

    assert spread.deviation is not None
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, spread.n - 1))
    return quantile * spread.deviation / math.sqrt(spread.n)


def judge(results: Sequence[Result], dataset: str) -> list[Judged]:
    """Returns the paper's cells on a dataset, with the common settings, in the paper's order."""
    cells = Cells.of(results, "accuracy")
    return [
        Judged(
            *(value.method, value.dataset, value.memory),
            spread=cells.spread((value.method, ""), value.dataset, value.memory),
            published=float(value.value),
        )
        for value in printed_values("table1", [dataset])
    ]
