"""What is kept, and what is drawn."""

from onepass.memory.draw import distinct, nth_true
from onepass.memory.mix import Places, Pools, line, shares
from onepass.memory.reservoir import Reservoir
from onepass.memory.store import Store

__all__ = [
    "Places",
    "Pools",
    "Reservoir",
    "Store",
    "distinct",
    "line",
    "nth_true",
    "shares",
]
