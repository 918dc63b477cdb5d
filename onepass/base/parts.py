"""The types that methods, memories, statistics and copies of the network share: labels, samples,
outputs, stateful parts and steps."""

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
"""A class as the user names it. Inside a learner, a class is a row of the class head."""


class Samples(NamedTuple):
    """Raw samples x (n, ...), their classes y (n) as rows of the head, and weights (n): 1, or 0 for
    padding."""

    x: Tensor
    y: Tensor
    weight: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Samples:
        """Returns samples of weight 1: none is padding."""
        return cls(x, y, torch.ones_like(y, dtype=torch.float32))

    def then(self, other: Samples) -> Samples:
        """Returns these samples followed by those of `other`, as one batch."""
        if not len(other.y):
            return self
        return Samples(*(torch.cat(pair) for pair in zip(self, other, strict=True)))

    def cut(self, *sizes: int) -> list[Samples]:
        """Returns consecutive pieces of these sizes, which add up to the number of samples."""
        pieces = zip(*(torch.split(part, list(sizes)) for part in self), strict=True)
        return [Samples(*piece) for piece in pieces]


MakeViews = Callable[[], Tensor]


def views_not_kept() -> Tensor:
    """Raises a LookupError: the `make_views` of an output whose views were not kept."""
    raise LookupError("the views behind these logits were not kept")


class Output(NamedTuple):
    """The network's logits (n, C) for the views of a batch, with the class and the weight of each
    view (n). C counts all rows of the head, including rows that have no class yet."""

    logits: Tensor
    y: Tensor
    weight: Tensor
    make_views: MakeViews = views_not_kept

    @property
    def views(self) -> Tensor:
        """The network's inputs behind these logits, so that a teacher can be run on the same ones.
        Raises a LookupError if they were not kept."""
        return self.make_views()

    @classmethod
    def of_all(cls, outputs: Sequence[Output]) -> Output:
        """Returns the outputs of several batches as one, in order; the views of several outputs are
        not kept."""
        if len(outputs) == 1:
            return outputs[0]
        # all fields except make_views
        logits, y, weight = zip(*(output[:3] for output in outputs), strict=True)
        return cls(torch.cat(logits), torch.cat(y), torch.cat(weight))

    def detach(self) -> Output:
        """Returns the output without its graph and views, as a step reports it."""
        return Output(self.logits.detach(), self.y, self.weight)

    def clone(self) -> Output:
        """Returns a copy with its own tensors and without views."""
        return Output(self.logits.clone(), self.y.clone(), self.weight.clone())


class Outputs(list[Output]):
    """The outputs of several batches, one for each. `logits` holds the logits of all of them if one
    forward pass gave them in this order."""

    def __init__(self, outputs: Iterable[Output], logits: Tensor | None = None) -> None:
        super().__init__(outputs)
        self.logits = logits

    @property
    def together(self) -> Output:
        """Returns all outputs as one, without cutting logits and joining them again."""
        if self.logits is None:
            return Output.of_all(self)
        y, weight = torch.cat([out.y for out in self]), torch.cat([out.weight for out in self])
        return Output(self.logits, y, weight)


class StatefulPart:
    """A part of a learner that has tensors of its own: a memory, a table of statistics, a copy of
    the network.

    The trainer calls its hooks when the head grows, when classes arrive, when a task begins and
    after each optimiser step. It saves and restores the tensors named in `tensors`, so a part needs
    no further code to be resumable.
    """

    tensors: ClassVar[tuple[str, ...]] = ()

    @property
    def bytes(self) -> int:
        """The bytes that this part adds to a method's declared cost: the samples of a full memory,
        the weights of a copy of the network, covariances of classes. A part without a declared cost
        has 0."""
        return 0

    def grow(self, rows: int) -> None:
        """Makes room for a head that now has this many rows."""

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        """Receives two masks (C) over the head's rows whenever one changes: `seen` marks the rows
        that have a class, `new` those whose class is new since the last task boundary."""

    def new_task(self) -> None:
        """Is called when a task begins: the classes that were new are old from now on."""

    def follow(self) -> None:
        """Is called after each optimiser step, for example to average weights. A CUDA graph of the
        step captures it, so it must not read values on the host."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the part's state for a checkpoint: copies of the tensors named in `tensors`."""
        return {name: getattr(self, name).clone() for name in self.tensors}

    def expect(self, saved: dict[str, Any], classes: int, name: str) -> None:
        """Raises a CheckpointError if `load_state_dict` could not take a saved state; called before
        anything is loaded.

        The saved state must have the shapes of this part's own. A part whose tensors change size
        overrides this. `classes` is the number of classes of the saved learner.
        """
        expect_alike(saved, self.state_dict(), name)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a saved state into the tensors in place, where a captured step reads them."""
        for name in self.tensors:
            getattr(self, name).copy_(state[name])

    def mark(self) -> dict[str, Tensor]:
        """Returns the state that `back_to` restores if the coming step fails before the optimiser
        changes the network. It must be small, because every step takes it."""
        return {name: getattr(self, name).clone() for name in self.tensors}

    def back_to(self, mark: dict[str, Tensor]) -> None:
        """Restores the state of `mark` in place, where a captured step reads it."""
        for name, value in mark.items():
            getattr(self, name).copy_(value)


def parts_of(owner: object) -> dict[str, StatefulPart]:
    """Returns every attribute that is a part, by name; once, if two attributes hold the same part.

    Raises an InputError for a part that only a list, a tuple or a dict holds, because saving would
    miss it.
    """
    found: dict[str, StatefulPart] = {}
    for name, value in vars(owner).items():  # two attributes may hold the same part
        if isinstance(value, StatefulPart) and value not in found.values():
            found[name] = value
    for name, value in vars(owner).items():
        items = value.values() if isinstance(value, dict) else value
        for item in items if isinstance(value, list | tuple | dict) else ():
            if isinstance(item, StatefulPart) and item not in found.values():
                raise InputError(
                    f"{name} holds a {type(item).__name__}: "
                    "give it an attribute of its own, or it is not saved"
                )
    return found


@dataclass(frozen=True, eq=False)
class Step:
    """A report of one training step: the loss, its named terms, and the outputs in it. If a learner
    repeats each batch, this is the last step on the batch.

    Its tensors stay on the device until they are read. Later steps do not change them.
    """

    loss: Tensor
    terms: dict[str, Tensor]
    outputs: tuple[Output, ...]

    @cached_property
    def together(self) -> Output | None:
        """All outputs as one; None if the step reports none, because its loss contains no softmax
        over classes."""
        return Output.of_all(self.outputs) if self.outputs else None

    def __repr__(self) -> str:
        terms = "".join(f", {name}={float(term):.4g}" for name, term in self.terms.items())
        return f"<Step loss={float(self.loss):.4g}{terms}>"

    @classmethod
    def of(cls, loss: Tensor, *outputs: Output, **terms: Tensor) -> Step:
        """Returns the report of a loss, the outputs in its softmax terms, and its named terms."""
        named = {name: value.detach() for name, value in terms.items()}
        return cls(loss.detach(), named, tuple(output.detach() for output in outputs))


# Training on an image costs so many forward passes: its own, and a backward pass, which costs two.
FORWARDS = 3


class ImageCount(NamedTuple):
    """The number of images that pass through networks: `trained` with a gradient, `scored` without.
    Passes through previous and averaged networks count too."""

    trained: int
    scored: int = 0

    @property
    def forwards(self) -> int:
        """The cost, in forward passes of an image."""
        return FORWARDS * self.trained + self.scored

    def __add__(self, other: object) -> ImageCount:
        if not isinstance(other, ImageCount):
            return NotImplemented
        return ImageCount(self.trained + other.trained, self.scored + other.scored)
