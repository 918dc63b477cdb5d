"""What methods with a memory share, and those that also train on draws from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from onepass.learner import Learner
from onepass.memory import Reservoir, Store
from onepass.parts import Images


@dataclass(kw_only=True, eq=False)
class WithMemory(Learner):
    """A memory, by default a reservoir.

    Parameters
    ----------
    memory
        How many samples are kept.
    """

    memory: int = 1000

    store: Store = field(init=False)
    least_memory: ClassVar[int] = 0

    def check_settings(self) -> None:
        super().check_settings()
        enough = f"at least {self.least_memory}" if self.least_memory else "zero or more"
        self.require("memory", self.memory >= self.least_memory, enough)

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.store = self.make_store(shape, dtype, self.rngs["draws"])

    def make_store(self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> Store:
        """The memory; a method with one of its own makes it here."""
        return Reservoir(self.memory, shape, dtype, rng)


@dataclass(kw_only=True, eq=False)
class Replay(WithMemory):
    """A memory, and a draw from it for each stream batch.

    Parameters
    ----------
    memory
        How many samples are kept.
    replay
        How many of them are drawn for each stream batch.
    """

    replay: int = 64

    def check_settings(self) -> None:
        super().check_settings()
        self.require("replay", self.replay >= 1, "at least 1")

    def cost(self, batch: int) -> Images:
        return Images(trained=(batch + self.replay) * self.views_per_sample)
