"""Small streams and learners for the checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from onepass.base.settings import setting_names
from onepass.data import Dataset, load
from onepass.learning.learner import Learner
from onepass.nets import MLP
from onepass.streams import ClassIncremental, Stream

CLASSES = 6
Method = type[Learner]


def dataset(
    classes: int = CLASSES, shape: tuple[int, ...] = (3, 8, 8), per_class: int = 40
) -> Dataset:
    sizes: dict[str, Any] = {"train_per_class": per_class, "test_per_class": 20}
    return load("synthetic", classes=classes, shape=shape, seed=1, **sizes)


def small_stream(
    classes: int = CLASSES, shape: tuple[int, ...] = (3, 8, 8), per_class: int = 40
) -> Stream:
    """Three tasks of two classes, 24 batches of 10."""
    whole = dataset(classes, shape, per_class)
    return ClassIncremental(whole, tasks=classes // 2, batch=10, seed=1)


device: ContextVar[str] = ContextVar("device", default="cpu")


def narrow(shape: tuple[int, ...]) -> nn.Module:
    """The usual perceptron with an eighth of its units: half of a step's time would go there."""
    return MLP(math.prod(shape), width=50)


NARROW = f"{narrow.__module__}:{narrow.__name__}"


def make(method: Method, **settings: Any) -> Learner:
    """A learner with a memory that fills up on the way, and with a narrow network, unless the
    method comes with one of its own."""
    return make_wide(method, **{**({"net": NARROW} if _takes_any_net(method) else {}), **settings})


def make_wide(method: Method, **settings: Any) -> Learner:
    """The same with the network that the method comes with, for checks of how well it learns."""
    small: dict[str, Any] = {"device": device.get(), **method.quick}
    if "memory" in setting_names(method):
        small["memory"] = 80
    return method(**{**small, **settings})


def _takes_any_net(method: Method) -> bool:
    return "net" not in method.quick and method.__dataclass_fields__["net"].default == "auto"


def taught(method: Method) -> dict[str, Any]:
    """Settings by which a method averages itself, learns from the average and repeats its steps, as
    far as it can."""
    every: dict[str, Any] = {"average": "growing", "distil": 1.0, "distil_raw": True, "repeats": 2}
    return {name: value for name, value in every.items() if name not in method.cannot}


def batches(
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
    for give in batches(stream, first, last):
        give(learner)
    return learner


def samples(stream: Stream) -> Tensor:
    return stream.dataset.test_x


def expect(holds: bool, what: str) -> None:
    """A check fails with a sentence."""
    if not holds:
        raise AssertionError(what)
