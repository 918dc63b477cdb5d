"""What is kept, and what is drawn."""

from onepass.memory.balanced import Balanced
from onepass.memory.draw import distinct, nth_true
from onepass.memory.filling import Filling
from onepass.memory.mix import Places, Pools, line, shares
from onepass.memory.reservoir import Reservoir
from onepass.memory.store import Store

__all__ = [
    "Balanced",
    "Filling",
    "Places",
    "Pools",
    "Reservoir",
    "Store",
    "distinct",
    "line",
    "nth_true",
    "shares",
]
