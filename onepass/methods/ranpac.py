"""RanPAC: ridge regression on random features.

Paper: McDonnell, Gong, Parvaneh, Abbasnejad, van den Hengel, "RanPAC: Random Projections and
Pre-trained Models for Continual Learning", NeurIPS 2023. With a fixed random matrix P:

    h = relu(z P)
    min sum |y - h W - b|^2 + strength |W|^2

Decisions:

- P has whole numbers (`functional.random_features`), so that z P is exact. It is scaled by a power
  of two to a deviation near 1, then h is clipped at 8 and rounded to the grid.
- `width="auto"` is four times the number of inputs, at most 10 000. The paper has 10 000 for 768;
  2048 features of 1280 inputs are no better than the inputs themselves.
- The strength is chosen by generalised cross-validation, as for `ridge`.

Departures from the paper: no network is adapted to the first task (its phase 1), which would take
several passes; an intercept; the strength does not come from held-out samples of the last task.
Cost: no network; the products with P, and after learning an eigendecomposition of a matrix of
D x D: a second at D = 2048, minutes at 10 000. Kept: counts, sums, and the sum of h h^T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional

from onepass.base.settings import require
from onepass.functional import exact, grid
from onepass.functional.closed_form import Linear, Moments, calibrated, ridge
from onepass.functional.random_features import (
    LARGEST_ENTRY,
    column_norm,
    draw_projection,
    projection_shift,
)
from onepass.learning.closed_form import ClosedForm
from onepass.learning.registry import method
from onepass.learning.traits import Traits

MOST_FEATURES = 10_000  # of `width="auto"`: 0.8 GB of sums


class RandomReLU(nn.Module):
    """Maps whole numbers (n, inputs) to random features (n, width), in grid steps."""

    projection: Tensor

    def __init__(self, inputs: int, width: int, seed: int) -> None:
        super().__init__()
        # short samples are not standardised: a constant input gives their features a threshold
        self.constant = inputs < grid.SHORTEST
        self.factor = 0.5 ** projection_shift(inputs)
        drawn = draw_projection(inputs + self.constant, width, seed)
        self.norm = column_norm(drawn)
        self.register_buffer("projection", drawn)  # P, (inputs, width)

    def forward(self, z: Tensor) -> Tensor:
        if self.constant:
            z = functional.pad(z, (0, 1), value=grid.STEPS)
        h = exact.product(z, self.projection, self.norm, LARGEST_ENTRY)  # z P, (n, width)
        return h.mul_(self.factor).round_().clamp_(0, grid.LARGEST).float()


@method("ranpac", paper="McDonnell et al., RanPAC: Random Projections and Pre-trained", year=2023)
@dataclass(kw_only=True, eq=False)
class RanPAC(ClosedForm):
    """Ridge regression on random features, from sums. It keeps no samples.

    Parameters
    ----------
    width
        The number of random features, or `auto`: four times the number of inputs, at most 10 000.
    strength
        The penalty of squared weights, or `auto`: generalised cross-validation.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.RanPAC(), stream)
    >>> last.accuracy > 94
    True
    """

    width: int | Literal["auto"] = "auto"
    strength: float | Literal["auto"] = "auto"

    traits: ClassVar[Traits] = Traits(quick={"width": 64})

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "width", self.width == "auto" or self.width >= 1, "at least 1, or auto")
        valid = self.strength == "auto" or self.strength > 0
        require(self, "strength", valid, "positive, or auto")

    @property
    def largest_feature(self) -> int:
        return grid.LARGEST

    def features_for(self, inputs: int) -> int:
        return min(4 * inputs, MOST_FEATURES) if self.width == "auto" else self.width

    def make_features(self, inputs: int, width: int) -> nn.Module:
        return RandomReLU(inputs, width, self.seed)

    def solve(self, moments: Moments) -> Linear:
        fit = ridge(moments, None if self.strength == "auto" else self.strength)
        return calibrated(fit, moments)
