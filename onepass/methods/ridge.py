"""Ridge: regression onto one-hot targets, in closed form.

Papers: Hoerl, Kennard, "Ridge Regression", Technometrics 1970; in class-incremental learning,
Zhuang et al., "ACIL: Analytic Class-Incremental Learning", NeurIPS 2022. With samples h, one-hot
targets y and an intercept b:

    min sum |y - h W - b|^2 + strength |W|^2

which depends on the samples through sums only: of h, of h h^T, and of h for each class.

Decisions: the strength is chosen by generalised cross-validation (Golub, Heath, Wahba, 1979), which
needs the sums alone: no held-out samples, no tasks, no number of classes known beforehand. Scores
are the estimates of y divided by a temperature (`functional.closed_form.calibrated`), so that their
softmax is a probability; the order of classes does not change.
Departures from ACIL: sums instead of the inverse that recursive least squares updates (the results
are the same in exact arithmetic, and sums stay exact); cross-validation instead of a constant.
Cost: no network; after learning, an eigendecomposition of a matrix of D x D, or a Cholesky factor
if the strength is given. Kept: counts, sums, and the sum of h h^T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onepass.base.settings import require
from onepass.functional.closed_form import Linear, Moments, calibrated, ridge
from onepass.learning.closed_form import ClosedForm
from onepass.learning.registry import method


@method("ridge", paper="Zhuang et al., Analytic Class-Incremental Learning", year=2022)
@dataclass(kw_only=True, eq=False)
class Ridge(ClosedForm):
    """Ridge regression onto one-hot targets, from sums. It keeps no samples.

    Parameters
    ----------
    strength
        The penalty of squared weights, or `auto`: generalised cross-validation.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.Ridge(), stream)
    >>> last.accuracy > 85
    True
    """

    strength: float | Literal["auto"] = "auto"

    def check_settings(self) -> None:
        super().check_settings()
        valid = self.strength == "auto" or self.strength > 0
        require(self, "strength", valid, "positive, or auto")

    def solve(self, moments: Moments) -> Linear:
        fit = ridge(moments, None if self.strength == "auto" else self.strength)
        return calibrated(fit, moments)
