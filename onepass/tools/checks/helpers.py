"""Small streams and learners for the checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from onepass.base.checksum import sha256
from onepass.base.settings import setting_names
from onepass.data import Dataset, load
from onepass.learning.learner import Learner
from onepass.nets import MLP
from onepass.streams import ClassIncremental, Stream

CLASSES = 6
SCORE_METHODS = "scores scorer"  # of a method's functions those that scores come from
MOST_NAMED = 4  # entries of a state, in a line
Method = type[Learner]


def small_dataset(
    classes: int = CLASSES, shape: tuple[int, ...] = (3, 8, 8), per_class: int = 40
) -> Dataset:
    sizes: dict[str, Any] = {"train_per_class": per_class, "test_per_class": 20}
    return load("synthetic", classes=classes, shape=shape, seed=1, **sizes)


def small_stream(
    classes: int = CLASSES, shape: tuple[int, ...] = (3, 8, 8), per_class: int = 40
) -> Stream:
    """Three tasks of two classes, 24 batches of 10."""
    whole = small_dataset(classes, shape, per_class)
    return ClassIncremental(whole, tasks=classes // 2, batch=10, seed=1)


device_of_checks: ContextVar[str] = ContextVar("device", default="cpu")


def narrow_mlp(shape: tuple[int, ...]) -> nn.Module:
    """The usual perceptron with an eighth of its units: half of a step's time would go there."""
    return MLP(math.prod(shape), width=50)


NARROW_NET = f"{narrow_mlp.__module__}:{narrow_mlp.__name__}"


def make_learner(method: Method, **settings: Any) -> Learner:
    """A learner with a memory that fills up on the way, and with a narrow network, unless the
    method comes with one of its own."""
    return make_wide_learner(
        method, **{**({"net": NARROW_NET} if _takes_any_net(method) else {}), **settings}
    )


def make_wide_learner(method: Method, **settings: Any) -> Learner:
    """The same with the network that the method comes with, for checks of how well it learns."""
    small: dict[str, Any] = {"device": device_of_checks.get(), **method.traits.quick}
    if "memory" in setting_names(method):
        small["memory"] = 80
    return method(**{**small, **settings})


def _takes_any_net(method: Method) -> bool:
    return "net" not in method.traits.quick and method.__dataclass_fields__["net"].default == "auto"


def self_distillation_settings(method: Method) -> dict[str, Any]:
    """Settings by which a method averages itself, learns from the average and repeats its steps, as
    far as it can."""
    every: dict[str, Any] = {"average": "growing", "distil": 1.0, "distil_raw": True, "repeats": 2}
    return {name: value for name, value in every.items() if name not in method.traits.unsupported}


def batch_steps(
    stream: Stream, first: int = 0, last: int | None = None
) -> Iterator[Callable[..., Any]]:
    """For each batch of a range a function that gives it to a learner, boundaries included, as an
    evaluation does."""
    for index in range(first, len(stream) if last is None else last):

        def give(learner: Learner, index: int = index) -> Any:
            if stream.starts_task(index):
                learner.new_task()
            step = learner.learn(*stream.batch(index))
            if stream.ends_task(index):
                learner.end_task()
            return step

        yield give


def teach(learner: Learner, stream: Stream, first: int = 0, last: int | None = None) -> Learner:
    for give in batch_steps(stream, first, last):
        give(learner)
    return learner


def unseen_samples(stream: Stream) -> Tensor:
    return stream.dataset.test_x


class ExpectationError(AssertionError):
    """A check has not found what it expected; `at` names functions of a method, separated by
    spaces, the first of which that the method has is to be looked at, or else its class."""

    def __init__(self, wanted: str, found: object, at: str) -> None:
        super().__init__(f"expected {wanted}; found {found}")
        self.at = at


def expect_that(holds: bool, wanted: str, found: object, at: str = "step") -> None:
    """Raises an error that says what was expected, what was found, and where to look."""
    if not holds:
        raise ExpectationError(wanted, found, at)


def expect_finite_values(values: Tensor, what: str, at: str = "step") -> None:
    """Raises an error if one of the numbers is not finite."""
    bad, count = int((~torch.isfinite(values)).sum()), values.numel()
    found = f"{bad} of {count} numbers that are not" if count > 1 else values.detach().item()
    expect_that(not bad, f"{what} to be finite", found, at)


Fingerprints = dict[str, str]


def state_fingerprints(learner: Learner) -> Fingerprints:
    """Returns a fingerprint of each entry of all that learning changes."""
    return dict(_fingerprints(learner.state_dict()))


def parameter_fingerprints(learner: Learner) -> Fingerprints:
    """Returns a fingerprint of each parameter and buffer of the network."""
    return dict(_fingerprints(dict(learner.model.state_dict())))


def _fingerprints(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _fingerprints(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, sha256(tree)


def expect_same_state(
    first: Fingerprints, second: Fingerprints, wanted: str, at: str = "step"
) -> None:
    """Raises an error that names the entries in which two states differ."""
    names = [name for name in first | second if first.get(name) != second.get(name)]
    shown = ", ".join(names[:MOST_NAMED]) + f" and {len(names) - MOST_NAMED} more" * (
        len(names) > MOST_NAMED
    )
    expect_that(not names, wanted, f"other values in {shown}", at)
