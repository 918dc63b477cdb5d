"""Copies of the network: an earlier state of it, and a moving average of its weights.

They are stateful parts: they are saved with the learner, grow with the head and are captured with
the step. No optimiser trains them. The cost of a step includes the images that they are evaluated
on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass.base.parts import StatefulPart
from onepass.nets import Classifier, Head, tied_batch_norm_copy
from onepass.nets.batch_norm_modes import NormLayer
from onepass.nets.optimisers import pad_rows

if TYPE_CHECKING:
    from onepass.learning.trainer import Trainer

BufferPair = tuple[nn.Module, nn.Module, str]  # module of the copy, of the network, buffer's name
Rule = float | Literal["growing", "arrivals"]  # a decay, or the name of a rule
GROWTH = 16  # `growing` averages over the last 1 / 17 of all steps
PART = 4  # `arrivals` averages over the last quarter
LONGEST = 1000  # the most steps that `growing` and `arrivals` average over


class NetworkCopy(StatefulPart):
    """A copy of the network in evaluation mode, with its weights and BatchNorm statistics.

    A call returns the logits (n, C) of views (n, ...), without a gradient.
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
        """Returns fp32 features (n, features) of views, without a gradient."""
        return self.model.features(views).float()

    @property
    def bytes(self) -> int:
        """The bytes of the copy's weights and buffers, without those that only training uses."""
        return sum(value.numel() * value.element_size() for value in _values(self.model).values())

    def grow(self, rows: int) -> None:
        """Appends rows to the copy's head, with the initial values of the network's new rows."""
        head, held = self.network.head, self.model.head.capacity
        self.model.head.extend(head.weight[held:].detach(), head.bias[held:].detach())

    def state_dict(self) -> dict[str, Any]:
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        return {**super().state_dict(), "model": weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.model.load_state_dict(state["model"])

    def mark(self) -> dict[str, Tensor]:
        """Returns no tensors, because a step that is undone has not changed the copy yet: a copy
        changes only after the optimiser's update."""
        return {}


class PreviousNetwork(NetworkCopy):
    """A copy of the network as it was at the last task boundary. Before the first one it is the
    untrained network.

    Parameters
    ----------
    at_boundaries
        Whether to copy the network at each task boundary. If false, the method calls `take_copy`.

    `known` is a mask (C) of the classes that the copied network knew, all false before the first
    copy. With bf16 precision the copy's weights are in bf16, cast once when they are copied.
    """

    tensors: ClassVar[tuple[str, ...]] = ("known",)

    def __init__(self, trainer: Trainer, *, at_boundaries: bool = True) -> None:
        super().__init__(trainer)
        self.at_boundaries = at_boundaries
        self.known = torch.zeros_like(trainer.seen)
        self._seen = trainer.seen
        if trainer.settings.precision == "bf16":
            for parameter in self.model.parameters():
                if parameter.ndim > 1:  # the weights that autocast casts
                    parameter.data = parameter.data.bfloat16()

    @torch.no_grad()
    def take_copy(self) -> None:
        """Copies the current network into this copy. This is in place, because a captured step
        reads these tensors."""
        now = _values(self.network)
        for name, value in _values(self.model).items():
            value.copy_(now[name])
        self.known.copy_(self._seen)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self._seen = seen

    def new_task(self) -> None:
        if self.at_boundaries:
            self.take_copy()

    def grow(self, rows: int) -> None:
        super().grow(rows)
        self.known = pad_rows(self.known, rows - len(self.known))


class WeightAverage(NetworkCopy):
    """A moving average of the network's weights over the optimiser's steps.

        mean_t = mean_{t-1} + rate_t (network_t - mean_{t-1})

    t counts optimiser steps from 1. The rate depends on the rule:

    rate_t = max(1 - decay, 1 / (t + 1)) for a decay. The average begins as the plain mean of all
    networks so far, so that it does not stay near the initial one.
    rate_t = max(17 / (t + 16), 1 / 1000) for `growing`. It spans the last t / 17 steps, because a
    network changes less and less, but at most 1000, because classes keep arriving.
    rate_t = max(4 / (4 + s), 1 / 1000) for `arrivals`, where s counts steps since a class arrived.
    It spans the last s / 4 steps, so that it learns new classes soon, but at most 1000.
    results/archive/averages-cifar100.md and results/best.md compare the rules.

    BatchNorm statistics are averaged like weights. Other buffers are copied from the network,
    because their meaning is unknown: a mask of infinities has no mean. `updates` is t, or s for
    `arrivals`.
    """

    tensors: ClassVar[tuple[str, ...]] = ("updates",)

    def __init__(self, trainer: Trainer, rule: Rule) -> None:
        super().__init__(trainer)
        self.rule = rule
        self._tensor_pairs = _TensorPairs(self.model, self.network)
        self._batch_norm_teacher = tied_batch_norm_copy(self.model, self.network)
        self.updates = torch.zeros((), device=trainer.torch_device)
        self._classes = trainer.seen.sum()

    @torch.no_grad()
    def teacher_logits(self, views: Tensor) -> Tensor:
        """Returns the logits (n, C) of views, without a gradient. BatchNorm uses the statistics of
        these views, as in the network that trains, and does not update its running ones."""
        return self._batch_norm_teacher.train_forward(views)

    def rate(self) -> Tensor:
        """Returns rate_t, the weight of the network in the update number `updates`."""
        if self.rule == "growing":
            return ((1 + GROWTH) / (self.updates + GROWTH)).clamp(min=1 / LONGEST)
        if self.rule == "arrivals":
            return (PART / (PART + self.updates)).clamp(min=1 / LONGEST)
        return (1 / (self.updates + 1)).clamp(min=1 - self.rule)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        count = seen.sum()
        if self.rule == "arrivals":  # restart the count, in place for captured steps
            self.updates.masked_fill_(count != self._classes, 0)
        self._classes = count

    @torch.no_grad()
    def follow(self) -> None:
        self.updates += 1
        rate = self.rate()
        for means, now in self._tensor_pairs.averaged():
            _move_towards(means, now, rate)
        for copies, now in self._tensor_pairs.copied():
            torch._foreach_copy_(copies, now)

    def grow(self, rows: int) -> None:
        super().grow(rows)
        self._tensor_pairs = _TensorPairs(self.model, self.network)
        self._batch_norm_teacher = tied_batch_norm_copy(self.model, self.network)


def _move_towards(means: list[Tensor], now: list[Tensor], rate: Tensor) -> None:
    """Updates each mean in place to mean + rate (now - mean), with one kernel for all tensors.

    It borrows the SGD kernel. Weight decay 1 contributes mean, `maximize` negates `now`, so that
    the gradient is mean - now, and the learning rate is `rate`."""
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


class _TensorPairs:
    """The pairs of a copy's tensor and the network's, for all tensors that training can change:
    weights, BatchNorm statistics and other buffers. They are found once, because the search takes
    about as long as a step of a small network."""

    def __init__(self, copied: Classifier, network: Classifier) -> None:
        # frozen weights never change, so the copy of them stays right
        weights = zip(copied.parameters(), network.parameters(), strict=True)
        self.weights = [pair for pair in weights if pair[1].requires_grad]
        modules = zip(copied.modules(), network.modules(), strict=True)
        found = {
            id(buffer): (theirs, own, name)  # once, even if layers share it
            for theirs, own in modules
            for name, buffer in own.named_buffers(recurse=False)
            if own is not network.head or f"head.{name}" not in Head.for_training
        }
        self.statistics: list[BufferPair] = []
        self.others: list[BufferPair] = []
        for pair in found.values():
            _, own, name = pair
            # a count of batches is an integer, which has no mean
            means = isinstance(own, NormLayer) and getattr(own, name).is_floating_point()
            (self.statistics if means else self.others).append(pair)

    def averaged(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yields the weights and statistics to average: a list of the copy's and one of the
        network's, for each dtype."""
        return _by_kind([*self.weights, *_now(self.statistics)])

    def copied(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yields the other buffers, to copy: a list of the copy's and one of the network's, for
        each dtype."""
        return _by_kind(_now(self.others))


def _now(buffers: list[BufferPair]) -> list[tuple[Tensor, Tensor]]:
    """Returns the current tensors of these buffers, in pairs. They are looked up each time, because
    a network may replace them."""
    return [(getattr(a, name), getattr(b, name)) for a, b, name in buffers]


def _by_kind(pairs: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yields a list of the first tensors and one of the second tensors of the pairs, for each
    dtype: one kernel takes only tensors of one dtype."""
    for kind in {now.dtype for _, now in pairs}:
        same = [pair for pair in pairs if pair[1].dtype == kind]
        yield [mine for mine, _ in same], [now for _, now in same]


def _values(model: Classifier) -> dict[str, Tensor]:
    """Returns all weights and buffers by name, each once, even if layers share it. The buffers of
    the head that only training uses are not among them."""
    own = dict(chain(model.named_parameters(), model.named_buffers()))
    return {name: value for name, value in own.items() if name not in Head.for_training}
