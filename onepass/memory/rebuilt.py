"""The two memories of a method that chooses its samples anew when a task ends.

`RebuiltMemory` holds the samples that were chosen from all tasks so far. Its content changes only
when a task ends, all at once. `TaskReservoir` collects random samples of the current task, from
which the method chooses. It is empty again when the next task begins.
"""

from __future__ import annotations

from torch import Tensor

from onepass.memory.fill_first import FillFirst
from onepass.memory.reservoir import Reservoir


class RebuiltMemory(FillFirst):
    """A memory whose samples are all replaced at once, by `replace`. A saved state has all slots,
    so that it always has the same size."""

    def replace(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        """Empties the memory and stores these samples."""
        self.size.zero_()
        self.add(x, y, **fields)

    def saved_slots(self, size: int) -> int:
        return self.capacity


class TaskReservoir(Reservoir):
    """A reservoir of the current task, emptied at each task boundary. A saved state has all slots,
    so that it always has the same size."""

    def new_task(self) -> None:
        self.size.zero_()
        self.offered.zero_()

    def saved_slots(self, size: int) -> int:
        return self.capacity
