"""Memories: which samples are kept, and which are drawn from them. Modules here import only
`base`."""

from onepass.memory.balanced import Balanced
from onepass.memory.fill_first import Filling
from onepass.memory.held_out import HeldOut, Sifted
from onepass.memory.mixed import MixedReservoir
from onepass.memory.rebuilt import OfTask, Rebuilt
from onepass.memory.reservoir import Reservoir
from onepass.memory.round_robin import Dealing
from onepass.memory.sampling import distinct, nth_true
from onepass.memory.store import Store

__all__ = [
    "Balanced",
    "Dealing",
    "Filling",
    "HeldOut",
    "MixedReservoir",
    "OfTask",
    "Rebuilt",
    "Reservoir",
    "Sifted",
    "Store",
    "distinct",
    "nth_true",
]
