"""The small vocabulary that memory, statistics, copies of the network and methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from onepass.base.errors import InputError
from onepass.base.expect import expect_alike

Label = int | str
"""What a class is called by whoever teaches it; inside, it is a row of the head."""


class Samples(NamedTuple):
    """Raw samples, their rows in the head, and a weight of 1, or 0 for padding."""

    x: Tensor
    y: Tensor
    weight: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Samples:
        """Returns samples that all count, as those of a stream batch do."""
        return cls(x, y, torch.ones_like(y, dtype=torch.float32))

    def then(self, other: Samples) -> Samples:
        if not len(other.y):
            return self
        return Samples(*(torch.cat(pair) for pair in zip(self, other, strict=True)))

    def cut(self, *sizes: int) -> list[Samples]:
        """Consecutive pieces of these sizes."""
        pieces = zip(*(torch.split(part, list(sizes)) for part in self), strict=True)
        return [Samples(*piece) for piece in pieces]


Show = Callable[[], Tensor]


def not_shown() -> Tensor:
    raise LookupError("these logits were made without keeping the views")


class Output(NamedTuple):
    """What the network said of some samples: logits (n, C) over the head's capacity."""

    logits: Tensor
    y: Tensor
    weight: Tensor
    show: Show = not_shown

    @property
    def views(self) -> Tensor:
        """What the network was shown: another one may be asked about the same."""
        return self.show()

    @classmethod
    def of_all(cls, outputs: Sequence[Output]) -> Output:
        """Of several batches, one after another."""
        if len(outputs) == 1:
            return outputs[0]
        logits, y, weight = zip(*(one[:3] for one in outputs), strict=True)
        return cls(torch.cat(logits), torch.cat(y), torch.cat(weight))

    def detach(self) -> Output:
        """What a step reports of it."""
        return Output(self.logits.detach(), self.y, self.weight)

    def clone(self) -> Output:
        return Output(self.logits.clone(), self.y.clone(), self.weight.clone())


class Outputs(list[Output]):
    """What the network said of several batches, batch by batch; `logits` are those of all, where
    one forward has given them in this order."""

    def __init__(self, outputs: Iterable[Output], logits: Tensor | None = None) -> None:
        super().__init__(outputs)
        self.logits = logits

    @property
    def together(self) -> Output:
        """All of it as one; logits that were never apart are not cut and joined again."""
        if self.logits is None:
            return Output.of_all(self)
        y, weight = torch.cat([out.y for out in self]), torch.cat([out.weight for out in self])
        return Output(self.logits, y, weight)


class StatefulPart:
    """A piece of a learner with tensors of its own: a memory, a table of statistics, a copy of the
    network.

    The trainer tells its parts when the head grows, when classes arrive, when a task begins and
    when the optimiser has made a step, and saves the tensors named in `tensors`; nothing else has
    to be written to be resumable.
    """

    tensors: ClassVar[tuple[str, ...]] = ()

    @property
    def bytes(self) -> int:
        """What is declared to be kept: the samples of a full memory, the weights of a copy."""
        return 0

    def grow(self, rows: int) -> None:
        """The head now has this many rows."""

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        """The rows of the head that have a class, and those whose class is new since the last
        boundary; said whenever they change."""

    def new_task(self) -> None:
        """What was new is old from here on."""

    def follow(self) -> None:
        """The network has just moved by one step of the optimiser; captured with the step."""

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).clone() for name in self.tensors}

    def expect(self, saved: dict[str, Any], classes: int, name: str) -> None:
        """Refuses a saved state that `load_state_dict` could not take, before anything is loaded:
        it must look like this part's own. A part whose tensors have other sizes from state to
        state says here which ones they must have; there are so many classes."""
        expect_alike(saved, self.state_dict(), name)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.tensors:
            getattr(self, name).copy_(state[name])

    def mark(self) -> dict[str, Tensor]:
        """What `back_to` needs if the coming step fails before the optimiser moves the network: a
        few numbers, since it is taken at each step."""
        return {name: getattr(self, name).clone() for name in self.tensors}

    def back_to(self, mark: dict[str, Tensor]) -> None:
        """As it was then, in place, where a captured step reads it."""
        for name, value in mark.items():
            getattr(self, name).copy_(value)


def parts_of(owner: object) -> dict[str, StatefulPart]:
    """Every attribute that is a part; one that only a list or a dict holds would be forgotten when
    its owner is saved."""
    found: dict[str, StatefulPart] = {}
    for name, value in vars(owner).items():
        if isinstance(value, StatefulPart) and value not in found.values():
            found[name] = value
    for name, value in vars(owner).items():
        inside = value.values() if isinstance(value, dict) else value
        for one in inside if isinstance(value, list | tuple | dict) else ():
            if isinstance(one, StatefulPart) and one not in found.values():
                raise InputError(f"{name} holds a part: give it an attribute of its own")
    return found


@dataclass(frozen=True, eq=False)
class Step:
    """What one step did, with `repeats` the last one on its batch; it stays on the device until
    someone reads it. Its tensors belong to whoever holds them: later steps leave them alone."""

    loss: Tensor
    terms: dict[str, Tensor]
    outputs: tuple[Output, ...]

    @cached_property
    def together(self) -> Output | None:
        """All outputs as one, for whoever watches; none where nothing was trained by a softmax."""
        return Output.of_all(self.outputs) if self.outputs else None

    def __repr__(self) -> str:
        terms = "".join(f", {name}={float(term):.4g}" for name, term in self.terms.items())
        return f"<Step loss={float(self.loss):.4g}{terms}>"

    @classmethod
    def of(cls, loss: Tensor, *outputs: Output, **terms: Tensor) -> Step:
        """From the loss, what was trained by a softmax, and the terms of the loss by name."""
        named = {name: value.detach() for name, value in terms.items()}
        return cls(loss.detach(), named, tuple(output.detach() for output in outputs))


class ImageCount(NamedTuple):
    """Images that go through a network, previous and averaged ones included: `trained` for a
    gradient, `scored` without one."""

    trained: int
    scored: int = 0

    def __add__(self, other: object) -> ImageCount:
        if not isinstance(other, ImageCount):
            return NotImplemented
        return ImageCount(self.trained + other.trained, self.scored + other.scored)
