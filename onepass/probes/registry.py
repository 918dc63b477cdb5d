"""Probes by name, as jobs ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from onepass.errors import InputError, UnknownNameError
from onepass.listeners import Listener

P = TypeVar("P", bound=Listener)
_PROBES: dict[str, type[Listener]] = {}


def probe(key: str) -> Callable[[type[P]], type[P]]:
    """Registers a listener that can be made without arguments under the name by which jobs and the
    command line ask for it; what it says is recorded in `<key>.jsonl`."""

    def register(listener: type[P]) -> type[P]:
        known = _PROBES.get(key)
        if known is not None and known.__qualname__ != listener.__qualname__:
            raise InputError(f"there is a probe {key!r} already: {known.__qualname__}")
        listener.key = key
        _PROBES[key] = listener
        return listener

    return register


def probes() -> dict[str, type[Listener]]:
    """Every probe, by name."""
    return dict(_PROBES)


def made(names: Sequence[str]) -> list[Listener]:
    """New probes of these names."""
    for name in names:
        if name not in _PROBES:
            raise UnknownNameError("probe", name, _PROBES)
        if list(names).count(name) > 1:
            raise InputError(f"the probe {name!r} is asked for twice")
    return [_PROBES[name]() for name in names]
