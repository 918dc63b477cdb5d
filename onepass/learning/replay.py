"""What methods with a memory share, and those that also train on draws from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass.base.parts import ImageCount, StatefulPart
from onepass.base.settings import require
from onepass.learning.learner import Learner
from onepass.learning.memory_contents import stores_of
from onepass.memory import Reservoir, Store
from onepass.nets import has_training_norms, recalibrated_copy

NORMALISED_BY = 1000  # samples; these numbers were chosen in results/norms.md
NEW_ODDS = 2  # so many of the newest classes to one of the others,
MOST = 18  # but no class counts for more than so many others


@dataclass(kw_only=True, eq=False)
class WithMemory(Learner):
    """A memory, by default a reservoir.

    Parameters
    ----------
    memory
        How many samples are kept.
    norms
        What BatchNorm predicts with: the `running` statistics of training, or those of a thousand
        samples of the `memory` as they are, two thirds of them of the newest task's classes (less
        where these are not a tenth of all: a class counts for at most 18 others). The network is
        shown these whenever scores follow a step; training does not notice.
    """

    memory: int = 1000
    norms: Literal["running", "memory"] = "running"

    store: Store = field(init=False)
    newest: Newest = field(init=False)

    def check_settings(self) -> None:
        super().check_settings()
        least = self.traits.least_memory
        require(
            self, "memory", self.memory >= least, f"at least {least}" if least else "zero or more"
        )

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.store = self.make_store(shape, dtype, self.trainer.rngs["draws"])
        if self.norms == "memory":
            self.newest = Newest(self.trainer.torch_device)

    def make_store(self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> Store:
        """The memory; a method with one of its own makes it here."""
        return Reservoir(self.memory, shape, dtype, rng)

    def scorer(self) -> nn.Module:
        if self.norms == "running" or not has_training_norms(self.model):
            return self.trainer.answering
        x = torch.cat([store.x[: int(store.size)] for store in stores_of(self)])
        y = torch.cat([store.y[: int(store.size)] for store in stores_of(self)])
        share = new_share(int(self.newest.first), len(self.classes))
        x = x[partly_new(self.newest.among(y), share)]
        self.trainer.spend("scores", ImageCount(trained=0, scored=len(x)))
        return recalibrated_copy(self.trainer.answering, self.model, self.views.normalise(x))


class Newest(StatefulPart):
    """The classes of the last task that brought any: a task whose classes are yet to come, or all
    known, changes nothing. They are the rows from `first` on, since rows come in order of arrival.
    """

    tensors: ClassVar[tuple[str, ...]] = ("first",)

    def __init__(self, where: torch.device) -> None:
        self.first = torch.zeros((), dtype=torch.long, device=where)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self.first.copy_(torch.where(new.any(), seen.sum() - new.sum(), self.first))

    def among(self, y: Tensor) -> Tensor:
        """Which of some labels are of these classes, a mask (n)."""
        return y >= self.first


def new_share(old: int, known: int) -> float:
    """How much of the statistics is of the newest classes, if so many of those known are older."""
    odds = min(NEW_ODDS, MOST * (known - old) / max(1, old))
    return odds / (1 + odds)


def partly_new(is_new: Tensor, share: float) -> Tensor:
    """A thousand places among samples that are new or not (a mask, n): a share of them new, the
    rest not; all of one kind if there is no other, and none of no samples."""
    places = torch.arange(len(is_new), device=is_new.device)
    if not is_new.any() or is_new.all():
        return evenly(places, NORMALISED_BY)
    count = round(share * NORMALISED_BY)
    rest = NORMALISED_BY - count
    return torch.cat([evenly(places[is_new], count), evenly(places[~is_new], rest)])


def evenly(places: Tensor, count: int) -> Tensor:
    """So many of the places, evenly spread; each several times if there are fewer, and none of
    none."""
    if not len(places):
        return places
    return places[torch.arange(count, device=places.device) * len(places) // count]


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
        require(self, "replay", self.replay >= 1, "at least 1")

    def cost(self, batch: int) -> ImageCount:
        return ImageCount(trained=(batch + self.replay) * self.views_per_sample)
