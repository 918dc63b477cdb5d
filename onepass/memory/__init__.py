"""Replay memories: which samples they keep, and how a batch is drawn from them. Modules here import
only each other and `base`."""

from onepass.memory.balanced import BalancedMemory
from onepass.memory.fill_first import FillFirst
from onepass.memory.held_out import FilteredReservoir, HeldOutSet
from onepass.memory.mixed import MixedReservoir
from onepass.memory.rebuilt import RebuiltMemory, TaskReservoir
from onepass.memory.reservoir import Reservoir
from onepass.memory.round_robin import RoundRobin
from onepass.memory.sampling import draw_distinct, nth_true
from onepass.memory.store import Store

__all__ = [
    "BalancedMemory",
    "FillFirst",
    "FilteredReservoir",
    "HeldOutSet",
    "MixedReservoir",
    "RebuiltMemory",
    "Reservoir",
    "RoundRobin",
    "Store",
    "TaskReservoir",
    "draw_distinct",
    "nth_true",
]
