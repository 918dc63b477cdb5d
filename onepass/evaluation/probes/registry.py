"""Probes by name, as jobs ask for them."""

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
    """Registers a listener that can be made without arguments under the name by which jobs and the
    command line ask for it; what it says is recorded in `<key>.jsonl`."""

    if key in RESERVED:
        raise InputError(f"a probe cannot be called {key!r}: every run has a listener of that name")

    def register(listener: type[P]) -> type[P]:
        PROBES.add(key, listener, defined=listener)
        listener.key = key
        return listener

    return register


def expect_probes(names: Sequence[str]) -> None:
    """Refuses names of no probe, and a name that stands there twice."""
    for name in names:
        PROBES[name]
        if list(names).count(name) > 1:
            raise InputError(f"the probe {name!r} is asked for twice")


def make_probes(names: Sequence[str]) -> list[Listener]:
    """New probes of these names."""
    expect_probes(names)
    return [PROBES[name]() for name in names]
