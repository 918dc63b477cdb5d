"""What methods with a memory share, and those that also train on draws from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass.learner import Learner
from onepass.memory import Reservoir, Store
from onepass.nets import normalises, renormalised
from onepass.parts import Images

NORMALISED_BY, NEW_SHARE = 1000, 2 / 3  # samples, of which so many are new: see results/norms.md


@dataclass(kw_only=True, eq=False)
class WithMemory(Learner):
    """A memory, by default a reservoir.

    Parameters
    ----------
    memory
        How many samples are kept.
    norms
        What BatchNorm predicts with: the `running` statistics of training, or those of a thousand
        samples of the `memory` as they are, two thirds of them of the newest task's classes. The
        network is shown these whenever scores follow a step; training does not notice.
    """

    memory: int = 1000
    norms: Literal["running", "memory"] = "running"

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

    def scorer(self) -> nn.Module:
        if self.norms == "running" or not normalises(self.model):
            return self.answering
        x = self.store.x[partly_new(self.store, self.new)]
        self.spend("scores", Images(trained=0, scored=len(x)))
        return renormalised(self.answering, self.model, self.views.normalise(x))


def partly_new(store: Store, new: Tensor, share: float = NEW_SHARE) -> Tensor:
    """A thousand slots of a memory: a share of them of new classes (a mask, C), the rest of others;
    all of one kind if there is no other."""
    slots = torch.arange(int(store.size), device=new.device)
    is_new = new[store.y[slots]]
    if not is_new.any() or is_new.all():
        return evenly(slots, NORMALISED_BY) if len(slots) else slots
    count = round(share * NORMALISED_BY)
    return torch.cat([evenly(slots[is_new], count), evenly(slots[~is_new], NORMALISED_BY - count)])


def evenly(slots: Tensor, count: int) -> Tensor:
    """So many of the slots, evenly spread; each several times if there are fewer."""
    return slots[torch.arange(count, device=slots.device) * len(slots) // count]


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
