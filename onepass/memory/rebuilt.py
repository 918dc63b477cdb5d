"""The two halves of a memory that is rebuilt when a task ends: what was chosen then, and candidates
of the task that is running."""

from __future__ import annotations

from torch import Tensor

from onepass.memory.fill_first import FillFirst
from onepass.memory.reservoir import Reservoir


class RebuiltMemory(FillFirst):
    """A memory that is exchanged as a whole. All slots are saved, so that a state has the same size
    at any time."""

    def replace(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        self.size.zero_()
        self.add(x, y, **fields)

    def saved_slots(self, size: int) -> int:
        return self.capacity


class TaskReservoir(Reservoir):
    """A reservoir of the running task: it starts anew at every boundary. All slots are saved here,
    too."""

    def new_task(self) -> None:
        self.size.zero_()
        self.offered.zero_()

    def saved_slots(self, size: int) -> int:
        return self.capacity
