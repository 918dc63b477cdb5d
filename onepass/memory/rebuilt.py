"""The two halves of a memory that is rebuilt when a task ends: what was chosen then, and candidates
of the task that is running."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from onepass.memory.filling import Filling
from onepass.memory.reservoir import Reservoir
from onepass.parts import Part


class Rebuilt(Filling):
    """A memory that is exchanged as a whole."""

    def replace(self, x: Tensor, y: Tensor, **fields: Tensor) -> None:
        self.size.zero_()
        self.add(x, y, **fields)


class OfTask(Reservoir):
    """A reservoir of the running task: it starts anew at every boundary. All rows are saved, so
    that a state has the same size at any time."""

    def new_task(self) -> None:
        self.size.zero_()
        self.offered.zero_()

    def state_dict(self) -> dict[str, Any]:
        rows = {"x": self.x[: self.capacity].clone(), "y": self.y[: self.capacity].clone()}
        return {**Part.state_dict(self), **rows}
