"""NCM: the class with the nearest mean.

Papers: Mensink, Verbeek, Perronnin, Csurka, "Distance-Based Image Classification: Generalizing to
New Classes at Near-Zero Cost", TPAMI 2013; as a head on frozen features, Rebuffi et al., "iCaRL",
CVPR 2017. For a sample h and the mean m_c of class c:

    predict argmin_c |h - m_c|^2

Scores are logits of the Gaussian model behind that rule, with one variance v within classes and in
all directions (`functional.closed_form.nearest_mean`):

    s_c = (m_c . h - |m_c|^2 / 2) / v

Decisions: every sample of 32 values or more has mean 0 and variance 1, so all have the same norm.
Departures from the papers: no metric is learned, and means are of all samples, not of chosen ones.
Cost: no network. Kept: a count and a sum for each class, and the sums of squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onepass.functional.closed_form import Linear, Moments, nearest_mean
from onepass.learning.closed_form import ClosedForm
from onepass.learning.registry import method


@method("ncm", paper="Mensink et al., Distance-Based Image Classification", year=2013)
@dataclass(kw_only=True, eq=False)
class NCM(ClosedForm):
    """The class with the nearest mean. It keeps sums and no samples.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.NCM(), stream)
    >>> last.accuracy > 85
    True
    """

    with_gram: ClassVar[bool] = False

    def solve(self, moments: Moments) -> Linear:
        return nearest_mean(moments)
