"""The base classes of methods with a memory, and of those that train on draws from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass.base.parts import ImageCount, StatefulPart
from onepass.base.settings import require
from onepass.learning.memory_contents import stores_of
from onepass.learning.network_learner import NetworkLearner
from onepass.memory import Reservoir, Store
from onepass.nets import has_training_norms, recalibrated_copy

NORMALISED_BY = 1000  # samples; results/norms.md has the experiments behind these three numbers
NEW_ODDS = 2  # samples of the newest classes per sample of the others,
MOST = 18  # but no newest class counts more than 18 times as much as another class


@dataclass(kw_only=True, eq=False)
class WithMemory(NetworkLearner):
    """A method with a memory, by default a reservoir.

    Parameters
    ----------
    memory
        The number of samples in the memory.
    norms
        The BatchNorm statistics for predictions: the `running` ones of training, or those of 1000
        samples of the `memory`, without augmentation. Two thirds of these samples are of the newest
        task's classes (fewer if these are under a tenth of all classes, because one class weighs at
        most as much as 18 others). A small memory gives samples more than once. `memory` costs a
        forward pass at the first scores after a step. Training does not change.
    """

    memory: int = 1000
    norms: Literal["running", "memory"] = "running"

    store: Store = field(init=False)
    newest: NewestClasses = field(init=False)

    def check_settings(self) -> None:
        super().check_settings()
        least = self.traits.least_memory
        require(
            self, "memory", self.memory >= least, f"at least {least}" if least else "zero or more"
        )

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.store = self.make_store(shape, dtype, self.trainer.rngs["draws"])
        if self.norms == "memory":
            self.newest = NewestClasses(self.trainer.torch_device)

    def make_store(self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> Store:
        """Returns the memory: a reservoir, unless the method overrides it."""
        return Reservoir(self.memory, shape, dtype, rng)

    def scorer(self) -> nn.Module:
        if self.norms == "running" or not has_training_norms(self.model):
            return self.trainer.predicting_model
        x = torch.cat([store.x[: int(store.size)] for store in stores_of(self)])
        y = torch.cat([store.y[: int(store.size)] for store in stores_of(self)])
        share = newest_share(int(self.newest.first), len(self.classes))
        x = x[mix_newest(self.newest.contains(y), share)]
        self.trainer.count_images("scores", ImageCount(trained=0, scored=len(x)))
        views, network = self.views.normalise(x), self.trainer.predicting_model
        with torch.no_grad():
            self.trainer.expect_room(views, network)
        return recalibrated_copy(network, self.model, views)


class NewestClasses(StatefulPart):
    """The classes of the newest task that brought any. They are the rows from `first` on, because
    rows are in order of arrival. A task without new classes does not change them.
    """

    tensors: ClassVar[tuple[str, ...]] = ("first",)

    def __init__(self, where: torch.device) -> None:
        self.first = torch.zeros((), dtype=torch.long, device=where)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self.first.copy_(torch.where(new.any(), seen.sum() - new.sum(), self.first))

    def contains(self, y: Tensor) -> Tensor:
        """Returns a mask (n) of the rows y that belong to the newest classes."""
        return y >= self.first


def newest_share(old: int, known: int) -> float:
    """Returns the share of samples of the newest classes in the statistics, if `old` of all `known`
    classes are older."""
    odds = min(NEW_ODDS, MOST * (known - old) / max(1, old))
    return odds / (1 + odds)


def mix_newest(is_new: Tensor, share: float) -> Tensor:
    """Returns the indices of 1000 samples. A share of them is where the mask `is_new` (n) is true.
    If the mask is true everywhere or nowhere, they are from all samples. Without samples there are
    no indices."""
    indices = torch.arange(len(is_new), device=is_new.device)
    if not is_new.any() or is_new.all():
        return evenly_spaced(indices, NORMALISED_BY)
    count = round(share * NORMALISED_BY)
    rest = NORMALISED_BY - count
    return torch.cat([evenly_spaced(indices[is_new], count), evenly_spaced(indices[~is_new], rest)])


def evenly_spaced(indices: Tensor, count: int) -> Tensor:
    """Returns `count` of the indices, evenly spread, with repetitions if there are fewer. If there
    are none, it returns none."""
    if not len(indices):
        return indices
    return indices[torch.arange(count, device=indices.device) * len(indices) // count]


@dataclass(kw_only=True, eq=False)
class Replay(WithMemory):
    """A method that replays: it draws samples from its memory for each stream batch.

    Parameters
    ----------
    memory
        The number of samples in the memory.
    replay
        The number of samples to draw from it for each stream batch.
    """

    replay: int = 64

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "replay", self.replay >= 1, "at least 1")

    def cost(self, batch: int) -> ImageCount:
        return ImageCount(trained=(batch + self.replay) * self.views_per_sample)
