"""The registry of probes, by the names that jobs use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onepass.base.errors import InputError
from onepass.base.registry import Registry
from onepass.evaluation.callbacks import EVENTS, Forwarder, Listener

P = TypeVar("P", bound=Listener)
RESERVED = (EVENTS, Forwarder.key)
PROBES = Registry[type[Listener]]("probe", home="onepass.evaluation.probes")


def probe(key: str) -> Callable[[type[P]], type[P]]:
    """Registers a `Listener` class as a probe, under the name that jobs and the command line use.
    Its constructor must work without arguments. Its lines are recorded in `<key>.jsonl`."""

    if key in RESERVED:
        raise InputError(f"a probe cannot be called {key!r}: every run has a listener of this name")

    def register(listener: type[P]) -> type[P]:
        PROBES.add(key, listener, defined=listener)
        listener.key = key
        return listener

    return register


def expect_probes(names: Sequence[str]) -> None:
    """Raises an error for an unknown probe name, or for a name that occurs twice."""
    for name in names:
        PROBES[name]
        if list(names).count(name) > 1:
            raise InputError(f"the probe {name!r} is named twice; name it once")


def make_probes(names: Sequence[str]) -> list[Listener]:
    """Returns new probes of these names; raises an error as `expect_probes` does."""
    expect_probes(names)
    return [PROBES[name]() for name in names]
