"""The registry of probes, by the names that jobs use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from onepass.base.errors import InputError
from onepass.base.registry import Registry
from onepass.evaluation.callbacks import EVENTS, Forwarder, Listener

if TYPE_CHECKING:
    from onepass.learning.learner import Learner

P = TypeVar("P", bound=Listener)
RESERVED = (EVENTS, Forwarder.key)
PROBES = Registry[type[Listener]]("probe", home="onepass.evaluation.probes")


def probe(key: str) -> Callable[[type[P]], type[P]]:
    """Returns a decorator that registers a `Listener` class as a probe. `key` is the name that jobs
    and the command line use, and the class's key. Its constructor must work without arguments."""

    if key in RESERVED:
        raise InputError(
            f"a probe cannot be called {key!r}, as a listener of every run is: choose another"
        )

    def register(listener: type[P]) -> type[P]:
        PROBES.add(key, listener, defined=listener)
        listener.key = key
        return listener

    return register


def expect_probes(names: Sequence[str]) -> None:
    """Raises an UnknownNameError for a name that no probe has, and an InputError for a name that
    occurs twice."""
    for name in names:
        PROBES[name]  # raises the UnknownNameError
        if list(names).count(name) > 1:
            raise InputError(f"the probe {name!r} is named twice; name it once")


def expect_useful(names: Sequence[str], method: type[Learner]) -> None:
    """Raises an InputError for a probe that measures a network, which this method does not have."""
    from onepass.learning.network_learner import NetworkLearner

    for name in names:
        if PROBES[name].needs_network and not issubclass(method, NetworkLearner):
            raise InputError(
                f"the probe {name!r} needs a method that trains a network: {method.key} trains none"
            )


def make_probes(names: Sequence[str]) -> list[Listener]:
    """Returns a new probe of each name; raises an error as `expect_probes` does."""
    expect_probes(names)
    return [PROBES[name]() for name in names]
