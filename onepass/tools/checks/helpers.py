"""Small streams and learners for the checks, expectations, and fingerprints of learners."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from onepass.base.checksum import sha256
from onepass.base.settings import setting_names
from onepass.data import Dataset, load
from onepass.learning.closed_form import ClosedForm
from onepass.learning.learner import Learner
from onepass.learning.network_learner import NetworkLearner
from onepass.nets import MLP
from onepass.streams import ClassIncremental, Stream

CLASSES = 6
SCORE_METHODS = "scores scorer"  # functions of a method that make its scores
MOST_NAMED = 4  # differing entries of a state that an error names
Method = type[NetworkLearner]
AnyMethod = type[Learner]
ClosedFormMethod = type[ClosedForm]
L = TypeVar("L", bound=Learner)


def small_dataset(
    classes: int = CLASSES, shape: tuple[int, ...] = (3, 8, 8), per_class: int = 40
) -> Dataset:
    sizes: dict[str, Any] = {"train_per_class": per_class, "test_per_class": 20}
    return load("synthetic", classes=classes, shape=shape, seed=1, **sizes)


def small_stream(
    classes: int = CLASSES, shape: tuple[int, ...] = (3, 8, 8), per_class: int = 40
) -> Stream:
    """Returns a stream of two classes per task, by default three tasks and 24 batches of 10."""
    dataset = small_dataset(classes, shape, per_class)
    return ClassIncremental(dataset, tasks=classes // 2, batch=10, seed=1)


device_of_checks: ContextVar[str] = ContextVar("device", default="cpu")


def narrow_mlp(shape: tuple[int, ...]) -> nn.Module:
    """Returns the default perceptron with an eighth of its units.

    The full network would take half of the time of a check.
    """
    return MLP(math.prod(shape), width=50)


NARROW_NET = f"{narrow_mlp.__module__}:{narrow_mlp.__name__}"


def make_learner(method: type[L], **settings: Any) -> L:
    """Returns a learner whose memory of 80 samples, if it has one, fills up during `small_stream`.

    Its network is narrow, unless the method has one of its own, or none.
    """
    return make_wide_learner(
        method, **{**({"net": NARROW_NET} if _takes_any_net(method) else {}), **settings}
    )


def make_wide_learner(method: type[L], **settings: Any) -> L:
    """Returns a learner like `make_learner`, but with the method's usual network.

    Checks of accuracy need it.
    """
    small: dict[str, Any] = {"device": device_of_checks.get(), **method.traits.quick}
    if "memory" in setting_names(method):
        small["memory"] = 80
    return method(**{**small, **settings})


def _takes_any_net(method: AnyMethod) -> bool:
    if not issubclass(method, NetworkLearner) or "net" in method.traits.quick:
        return False
    return method.__dataclass_fields__["net"].default == "auto"


def self_distillation_settings(method: Method) -> dict[str, Any]:
    """Returns settings for a moving average of the weights that teaches, and for repeated steps.

    Settings that the method does not support are left out.
    """
    every: dict[str, Any] = {"average": "growing", "distil": 1.0, "distil_raw": True, "repeats": 2}
    return {name: value for name, value in every.items() if name not in method.traits.unsupported}


def batch_steps(
    stream: Stream, first: int = 0, last: int | None = None
) -> Iterator[Callable[..., Any]]:
    """Yields a function for each batch from `first` up to `last`, which teaches it to a learner.

    The function also announces the boundaries, as `evaluate` does, and returns the step.
    """
    for index in range(first, len(stream) if last is None else last):

        def give(learner: Learner, index: int = index) -> Any:
            if stream.starts_task(index):
                learner.new_task()
            step = learner.learn(*stream.batch(index))
            if stream.ends_task(index):
                learner.end_task()
            return step

        yield give


def teach(learner: L, stream: Stream, first: int = 0, last: int | None = None) -> L:
    """Teaches the batches from `first` up to `last`; returns the learner."""
    for give in batch_steps(stream, first, last):
        give(learner)
    return learner


def unseen_samples(stream: Stream) -> Tensor:
    return stream.dataset.test_x


class ExpectationError(AssertionError):
    """A check that did not find what it expected.

    `at` names functions of a method, separated by spaces. The user should look at the first that
    the method defines, or else at its class.
    """

    def __init__(self, wanted: str, found: object, at: str) -> None:
        super().__init__(f"expected {wanted}; found {found}")
        self.at = at


def expect_that(holds: bool, wanted: str, found: object, at: str = "step") -> None:
    """Raises ExpectationError with these words if a condition does not hold."""
    if not holds:
        raise ExpectationError(wanted, found, at)


def expect_finite_values(values: Tensor, what: str, at: str = "step") -> None:
    """Raises ExpectationError if one of the values is not finite; `what` names them."""
    bad, count = int((~torch.isfinite(values)).sum()), values.numel()
    found = f"{bad} of {count} numbers that are not" if count > 1 else values.detach().item()
    expect_that(not bad, f"{what} to be finite", found, at)


Fingerprints = dict[str, str]


def state_fingerprints(learner: Learner) -> Fingerprints:
    """Returns a checksum for each entry of the learner's state dict."""
    return dict(_fingerprints(learner.state_dict()))


def parameter_fingerprints(learner: Learner) -> Fingerprints:
    """Returns a checksum for each parameter and buffer of the network, or of whatever else decides
    predictions."""
    return dict(_fingerprints(learner._parameters()))


def _fingerprints(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _fingerprints(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, sha256(tree)


def count_bytes(tree: Any) -> int:
    """Returns the bytes of all tensors in a state dict."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, dict):
        return sum(count_bytes(value) for value in tree.values())
    return 0


def expect_same_state(
    first: Fingerprints, second: Fingerprints, wanted: str, at: str = "step"
) -> None:
    """Raises ExpectationError, which names the entries that differ, if two states do."""
    names = [name for name in first | second if first.get(name) != second.get(name)]
    listed = ", ".join(names[:MOST_NAMED]) + f" and {len(names) - MOST_NAMED} more" * (
        len(names) > MOST_NAMED
    )
    expect_that(not names, wanted, f"other values in {listed}", at)
