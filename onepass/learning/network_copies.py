"""Copies of the network: one that stays as the network was, one that follows it slowly.

They are parts: saved and resumed with the learner, grown with the head, captured with the step, and
no optimiser moves them. Images that they are shown count in the cost of a step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass.base.parts import StatefulPart
from onepass.nets import Classifier, Head, normalising
from onepass.nets.norms import Norms
from onepass.nets.optimisers import pad_rows

if TYPE_CHECKING:
    from onepass.learning.trainer import Trainer

Place = tuple[nn.Module, nn.Module, str]  # of a buffer: in a copy, in the network, its name
Rule = float | Literal["growing", "arrivals"]  # a decay, or the name of a rule
GROWTH = 16
PART = 4  # a quarter
LONGEST = 1000  # steps


class Copy(StatefulPart):
    """A second network with the weights and BatchNorm statistics of the first, evaluating.

    Calling it gives logits (n, C) of views, without a gradient.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.network = trainer.model
        self.model: Classifier = copy.deepcopy(trainer.model).requires_grad_(False).eval()

    @torch.no_grad()
    def __call__(self, views: Tensor) -> Tensor:
        logits: Tensor = self.model(views)
        return logits

    @torch.no_grad()
    def features(self, views: Tensor) -> Tensor:
        """What its backbone makes of views, (n, features), without a gradient, in fp32."""
        return self.model.features(views).float()

    @property
    def bytes(self) -> int:
        """Of its weights and statistics."""
        return sum(one.numel() * one.element_size() for one in _values(self.model).values())

    def grow(self, rows: int) -> None:
        """New rows are born with the values that they have in the network."""
        head, held = self.network.head, self.model.head.capacity
        self.model.head.extend(head.weight[held:].detach(), head.bias[held:].detach())

    def state_dict(self) -> dict[str, Any]:
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        return {**super().state_dict(), "model": weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.model.load_state_dict(state["model"])

    def mark(self) -> dict[str, Tensor]:
        """Nothing: it moves after the optimiser, or between steps."""
        return {}


class PreviousNetwork(Copy):
    """The network as it was when it was last taken, by default at each boundary.

    Parameters
    ----------
    at_boundaries
        Whether it is taken at the end of each task; if not, when the method calls `take`.

    `known` is a mask (C) of the classes that it knew then, all false before it is first taken.
    Under bf16 it is kept in bf16: its weights are cast when it is taken, not at each use.
    """

    tensors: ClassVar[tuple[str, ...]] = ("known",)

    def __init__(self, trainer: Trainer, *, at_boundaries: bool = True) -> None:
        super().__init__(trainer)
        self.at_boundaries = at_boundaries
        self.known = torch.zeros_like(trainer.seen)
        self._seen = trainer.seen
        if trainer.settings.precision == "bf16":
            for parameter in self.model.parameters():
                if parameter.ndim > 1:  # what autocast would cast
                    parameter.data = parameter.data.bfloat16()

    @torch.no_grad()
    def take(self) -> None:
        """From now on it is the network as it is now; in place, as a captured step needs it."""
        now = _values(self.network)
        for name, kept in _values(self.model).items():
            kept.copy_(now[name])
        self.known.copy_(self._seen)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self._seen = seen

    def new_task(self) -> None:
        if self.at_boundaries:
            self.take()

    def grow(self, rows: int) -> None:
        super().grow(rows)
        self.known = pad_rows(self.known, rows - len(self.known))


class WeightAverage(Copy):
    """An exponential average of the network over the optimiser's steps.

        mean_t = mean_{t-1} + rate_t (network_t - mean_{t-1})

    rate_t = max(1 - decay, 1 / (t + 1)) for a decay, so that it begins as the plain mean of all
    networks so far, the initial one included, instead of staying near that one.
    rate_t = max(17 / (t + 16), 1 / 1000) for `growing`: it spans the last t / 17 steps, since a
    network changes less and less, but never more than 1000, since classes go on arriving.
    rate_t = max(4 / (4 + s), 1 / 1000) for `arrivals`: it spans a quarter of the s steps since a
    class last arrived, so that whoever is new is known soon.
    (Measured in results/archive/averages-cifar100.md and results/best.md.)
    BatchNorm's statistics are averaged as weights are; any other buffer is the network's: nobody
    knows what it means, and a mask of infinities has no mean.
    """

    tensors: ClassVar[tuple[str, ...]] = ("updates",)

    def __init__(self, trainer: Trainer, rule: Rule) -> None:
        super().__init__(trainer)
        self.rule = rule
        self._pairs = _Pairs(self.model, self.network)
        self._teacher = normalising(self.model, self.network)
        self.updates = torch.zeros((), device=trainer.torch_device)
        self._classes = trainer.seen.sum()

    @torch.no_grad()
    def teach(self, views: Tensor) -> Tensor:
        """Its logits (n, C) of views, where BatchNorm has the statistics of these views, as in the
        network that trains, and leaves its own alone."""
        return self._teacher.train_forward(views)

    def rate(self) -> Tensor:
        """How far it moves towards the network at this update."""
        if self.rule == "growing":
            return ((1 + GROWTH) / (self.updates + GROWTH)).clamp(min=1 / LONGEST)
        if self.rule == "arrivals":
            return (PART / (PART + self.updates)).clamp(min=1 / LONGEST)
        return (1 / (self.updates + 1)).clamp(min=1 - self.rule)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        count = seen.sum()
        if self.rule == "arrivals":  # counts from here on, in place, as a captured step needs it
            self.updates.masked_fill_(count != self._classes, 0)
        self._classes = count

    @torch.no_grad()
    def follow(self) -> None:
        self.updates += 1
        rate = self.rate()
        for means, now in self._pairs.averaged():
            _move_towards(means, now, rate)
        for copies, now in self._pairs.copied():
            torch._foreach_copy_(copies, now)

    def grow(self, rows: int) -> None:
        super().grow(rows)
        self._pairs = _Pairs(self.model, self.network)
        self._teacher = normalising(self.model, self.network)


def _move_towards(means: list[Tensor], now: list[Tensor], rate: Tensor) -> None:
    """mean + rate (now - mean), in place, by one kernel for all: that of gradient descent on
    |mean - now|^2 / 2, whose gradient is a decay of 1 less `now`, maximised."""
    torch._fused_sgd_(
        means,
        now,
        [],
        weight_decay=1.0,
        momentum=0.0,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=True,
        is_first_step=False,
    )


class _Pairs:
    """The tensors of a copy beside those of the network that can move: found once, since a step of
    a small network takes hardly longer than to look for them."""

    def __init__(self, copied: Classifier, network: Classifier) -> None:
        weights = zip(copied.parameters(), network.parameters(), strict=True)
        self.weights = [pair for pair in weights if pair[1].requires_grad]
        modules = zip(copied.modules(), network.modules(), strict=True)
        found = {
            id(buffer): (theirs, own, name)  # each once, however many layers share it
            for theirs, own in modules
            for name, buffer in own.named_buffers(recurse=False)
            if own is not network.head or f"head.{name}" not in Head.for_training
        }
        self.statistics: list[Place] = []
        self.others: list[Place] = []
        for place in found.values():
            _, own, name = place
            means = isinstance(own, Norms) and getattr(own, name).is_floating_point()
            (self.statistics if means else self.others).append(place)

    def averaged(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """The copy's weights and statistics and the network's."""
        return _by_kind([*self.weights, *_now(self.statistics)])

    def copied(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """The copy's other buffers and the network's."""
        return _by_kind(_now(self.others))


def _now(buffers: list[Place]) -> list[tuple[Tensor, Tensor]]:
    """Looked up each time: a network may put others in their place."""
    return [(getattr(a, name), getattr(b, name)) for a, b, name in buffers]


def _by_kind(pairs: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The first and the second ones, for each kind of number."""
    for kind in {now.dtype for _, now in pairs}:
        same = [pair for pair in pairs if pair[1].dtype == kind]
        yield [mine for mine, _ in same], [now for _, now in same]


def _values(model: Classifier) -> dict[str, Tensor]:
    """Weights and statistics by name, each once, however many layers share it; without what the
    head remembers for training."""
    own = dict(chain(model.named_parameters(), model.named_buffers()))
    return {name: value for name, value in own.items() if name not in Head.for_training}
