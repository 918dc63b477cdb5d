"""SLDA: linear discriminant analysis on a stream, with one covariance for all classes.

Paper: Hayes, Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis",
CVPR Workshops 2020. With the mean m_c of each class and the covariance S within classes:

    s_c(h) = m_c^T S^-1 h - m_c^T S^-1 m_c / 2

which are logits: their softmax is the posterior of a Gaussian model with equally likely classes.

Decisions: S is shrunk by the oracle approximating shrinkage, as in RanDumb, whose parameters come
from S and the number of samples alone (`functional.closed_form.shrink`).
Departures from the paper: S and its inverse come from exact sums when scores are needed, not from
an update after each sample; the shrinkage is not a constant 1e-4.
Cost: no network; a Cholesky factor of S after learning. Kept: counts, sums, and the sum of h h^T.
"""

from __future__ import annotations

from dataclasses import dataclass

from onepass.functional.closed_form import Linear, Moments, discriminant
from onepass.learning.closed_form import ClosedForm
from onepass.learning.registry import method


@method("slda", paper="Hayes and Kanan, Deep Streaming Linear Discriminant Analysis", year=2020)
@dataclass(kw_only=True, eq=False)
class SLDA(ClosedForm):
    """Linear discriminant analysis from sums. It keeps no samples.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.SLDA(), stream)
    >>> last.accuracy > 90
    True
    """

    def solve(self, moments: Moments) -> Linear:
        return discriminant(moments)
