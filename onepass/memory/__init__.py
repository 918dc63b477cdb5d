"""What is kept, and what is drawn."""

from onepass.memory.draw import distinct, nth_true
from onepass.memory.mix import Places, Pools, line, shares
from onepass.memory.reservoir import Reservoir

__all__ = [
    "Places",
    "Pools",
    "Reservoir",
    "distinct",
    "line",
    "nth_true",
    "shares",
]
