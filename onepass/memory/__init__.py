"""What is kept, and what is drawn."""

from onepass.memory.draw import distinct, nth_true
from onepass.memory.mix import mix, pool
from onepass.memory.reservoir import Reservoir

__all__ = ["Reservoir", "distinct", "mix", "nth_true", "pool"]
