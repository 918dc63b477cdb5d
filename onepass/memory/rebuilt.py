"""The two halves of a memory that is rebuilt when a task ends: the samples chosen so far, and the
candidates of the current task."""

from __future__ import annotations

from torch import Tensor

from onepass.memory.fill_first import FillFirst
from onepass.memory.reservoir import Reservoir


class RebuiltMemory(FillFirst):
    """A memory whose samples are all replaced at once. It saves all slots, so that its state always
    has the same size."""

    def replace(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Empties the memory and stores these samples."""
        self.size.zero_()
        self.add(x, y, **fields)

    def saved_slots(self, size: int) -> int:
        return self.capacity


class TaskReservoir(Reservoir):
    """A reservoir of the current task, emptied at each boundary. It saves all slots, too."""

    def new_task(self) -> None:
        self.size.zero_()
        self.offered.zero_()

    def saved_slots(self, size: int) -> int:
        return self.capacity
