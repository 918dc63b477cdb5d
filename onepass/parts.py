"""The small vocabulary that memory, statistics and methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor


class Samples(NamedTuple):
    """Raw samples, their rows in the head, and a weight of 1, or 0 for padding."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def then(self, other: Samples) -> Samples:
        return Samples(*(torch.cat(pair) for pair in zip(self, other, strict=True)))

    def cut(self, *sizes: int) -> list[Samples]:
        """Consecutive pieces of these sizes."""
        pieces = zip(*(torch.split(part, list(sizes)) for part in self), strict=True)
        return [Samples(*piece) for piece in pieces]


class Output(NamedTuple):
    """What the network said of some samples: logits over the head's capacity."""

    logits: Tensor
    y: Tensor
    weight: Tensor

    def detach(self) -> Output:
        return Output(self.logits.detach(), self.y, self.weight)


class Part:
    """A piece of a learner with tensors of its own: a memory, a table of statistics.

    The learner tells its parts when the head grows, when classes arrive and when a task ends, and
    saves the tensors named in `tensors`; nothing else has to be written to be resumable.
    """

    tensors: ClassVar[tuple[str, ...]] = ()

    @property
    def bytes(self) -> int:
        """What the samples that are kept take; nothing, unless the part is a memory."""
        return 0

    def grow(self, capacity: int) -> None:
        """The head now has this many rows."""

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        """The rows of the head that have a class, and those whose class is new since the last
        boundary; said whenever they change."""

    def new_task(self) -> None:
        """What was new is old from here on."""

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).clone() for name in self.tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.tensors:
            getattr(self, name).copy_(state[name])


@dataclass(frozen=True, eq=False)
class Step:
    """What one step did; it stays on the device until someone reads it."""

    loss: Tensor
    terms: dict[str, Tensor]
    outputs: tuple[Output, ...]


class Images(NamedTuple):
    """Images a step sends through the network once tasks and memory are under way."""

    trained: int
    scored: int = 0


class Preset(NamedTuple):
    """Settings of a method that belong together, and where they come from."""

    settings: dict[str, Any]
    source: str
