"""Kernel LDA: linear discriminant analysis on random Fourier features.

Papers: Momeni, Mazumder, Liu, "Continual Learning Using a Kernel-Based Method Over Foundation
Models" (KLDA), AAAI 2025; Prabhu et al., "RanDumb: Random Representations Outperform Online
Continually Learned Representations", NeurIPS 2024; Rahimi, Recht, NeurIPS 2007, for the features:

    h = cos(z W + p),    W ~ N(0, 2 gamma),    p uniform on a turn
    s_c(h) = m_c^T S^-1 h - m_c^T S^-1 m_c / 2

so that h . h' estimates the kernel exp(-gamma |z - z'|^2), up to a factor that changes nothing.

Decisions:

- W is a sum of twelve whole numbers, which is nearly normal, so that z W is exact. One product in
  float64 makes it a step of a turn in 4096, and a table holds the cosines, in grid steps. So these
  features, too, have the same bits on every machine.
- `gamma="auto"` is 1 / inputs, as scikit-learn's `scale` for samples of variance 1.
- `width="auto"` is four times the number of inputs, at most 10 000.
- S is shrunk as in `slda`, which is RanDumb's rule too.

Departures from the papers: no ensemble of several draws (KLDA-E), no mirrored copies (RanDumb).
Cost: no network; the products with W, and after learning a Cholesky factor of a matrix of D x D.
Kept: counts, sums, and the sum of h h^T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass.base.settings import require
from onepass.functional import exact, grid
from onepass.functional.closed_form import Linear, Moments, discriminant
from onepass.functional.random_features import (
    FREQUENCY_VARIANCE,
    LARGEST_ENTRY,
    TERMS,
    column_norm,
    draw_frequencies,
    draw_phases,
)
from onepass.learning.closed_form import ClosedForm
from onepass.learning.registry import method
from onepass.learning.traits import Traits

TURN = 4096  # steps in a turn
MOST_FEATURES = 10_000  # of `width="auto"`: 0.8 GB of sums


class RandomFourier(nn.Module):
    """Maps whole numbers (n, inputs) to random cosines (n, width), in grid steps."""

    frequencies: Tensor
    phases: Tensor
    cosines: Tensor
    steps: Tensor

    def __init__(self, inputs: int, width: int, seed: int, gamma: float) -> None:
        super().__init__()
        drawn = draw_frequencies(inputs, width, seed)
        self.norm = column_norm(drawn)
        # radians: sqrt(2 gamma) (z / STEPS) (W / deviation of W)
        radians = math.sqrt(2 * gamma) / (grid.STEPS * math.sqrt(FREQUENCY_VARIANCE))
        steps = torch.tensor(radians * TURN / (2 * math.pi), dtype=torch.float64)
        self.register_buffer("steps", steps)  # of the angle z W, which depend on gamma
        self.register_buffer("frequencies", drawn)  # W, (inputs, width)
        self.register_buffer("phases", draw_phases(width, TURN, seed))  # p, (width)
        turn = [round(grid.LARGEST * math.cos(2 * math.pi * k / TURN)) for k in range(TURN)]
        self.register_buffer("cosines", torch.tensor(turn, dtype=torch.float32))

    def forward(self, z: Tensor) -> Tensor:
        largest = TERMS * LARGEST_ENTRY
        angle = exact.product(z, self.frequencies, self.norm, largest).double()  # z W, (n, width)
        index = angle.mul_(self.steps).round_().long().add_(self.phases)
        return self.cosines[index.remainder_(TURN)]


@method("kernel-lda", paper="Momeni et al., Continual Learning Using a Kernel", year=2025)
@dataclass(kw_only=True, eq=False)
class KernelLDA(ClosedForm):
    """Linear discriminant analysis on random Fourier features, from sums. It keeps no samples.

    Parameters
    ----------
    width
        The number of random features, or `auto`: four times the number of inputs, at most 10 000.
    gamma
        The sharpness of the kernel exp(-gamma |z - z'|^2), or `auto`: 1 / inputs.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.KernelLDA(), stream)
    >>> last.accuracy > 94
    True
    """

    width: int | Literal["auto"] = "auto"
    gamma: float | Literal["auto"] = "auto"

    traits: ClassVar[Traits] = Traits(quick={"width": 64})

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "width", self.width == "auto" or self.width >= 1, "at least 1, or auto")
        valid = self.gamma == "auto" or 0 < self.gamma < math.inf
        require(self, "gamma", valid, "positive, or auto")

    @property
    def largest_feature(self) -> int:
        return grid.LARGEST

    def features_for(self, inputs: int) -> int:
        return min(4 * inputs, MOST_FEATURES) if self.width == "auto" else self.width

    def make_features(self, inputs: int, width: int) -> nn.Module:
        gamma = 1 / inputs if self.gamma == "auto" else self.gamma
        return RandomFourier(inputs, width, self.seed, gamma)

    def solve(self, moments: Moments) -> Linear:
        return discriminant(moments)
