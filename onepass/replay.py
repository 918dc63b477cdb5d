"""What the methods share that train on draws from a reservoir beside the stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from onepass.learner import Learner
from onepass.memory import Reservoir
from onepass.parts import Images


@dataclass(kw_only=True, eq=False)
class Replay(Learner):
    """A reservoir, and a draw from it for each stream batch.

    Parameters
    ----------
    memory
        How many samples are kept.
    replay
        How many of them are drawn for each stream batch.
    """

    memory: int = 1000
    replay: int = 64

    store: Reservoir = field(init=False, repr=False)
    keeps: ClassVar[tuple[str, ...]] = ("x", "y")
    parts: ClassVar[tuple[str, ...]] = ("store",)

    def check_settings(self) -> None:
        super().check_settings()
        self.require("memory", self.memory >= 0, "zero or more")
        self.require("replay", self.replay >= 1, "at least 1")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.store = Reservoir(self.memory, shape, dtype, self.generators["draws"])

    def cost(self, batch: int) -> Images:
        return Images(trained=(batch + self.replay) * self.copies)
