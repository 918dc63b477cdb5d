"""Streams by name. Adding one is one file and one import line in `streams/__init__.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from onepass.base.errors import InputError
from onepass.base.registry import Registry

if TYPE_CHECKING:
    from onepass.streams.base import Stream

S = TypeVar("S", bound="Stream")


@dataclass(frozen=True)
class StreamInfo:
    """How a stream is made, and what can be asked of it: its arguments besides dataset and seed,
    with their types and their defaults."""

    key: str
    make: Callable[..., Stream]
    arguments: dict[str, Any]
    defaults: dict[str, Any]
    seeded: bool


STREAMS = Registry[StreamInfo]("stream", "onepass.streams", "onepass.streams")


def stream(key: str) -> Callable[[type[S]], type[S]]:
    """Registers a class of streams. Its constructor takes `dataset`, `seed` if anything is drawn,
    and arguments of its own, each with a type and a default: they are what the command line, tables
    and `spec` know."""

    def register(made: type[S]) -> type[S]:
        arguments = _arguments(key, made)
        parameters = inspect.signature(made).parameters
        defaults = {name: parameters[name].default for name in arguments}
        info = StreamInfo(key, made, arguments, defaults, seeded="seed" in parameters)
        STREAMS.add(key, info, defined=made)
        made.key = key
        _record_arguments(made, arguments)
        return made

    return register


def _arguments(key: str, made: type[Stream]) -> dict[str, Any]:
    hints = get_type_hints(made.__init__)
    own = dict(inspect.signature(made).parameters)
    if own.pop("dataset", None) is None:
        raise InputError(f"stream {key!r}: the constructor must take a dataset")
    own.pop("seed", None)
    for name, one in own.items():
        if name not in hints or one.default is inspect.Parameter.empty:
            raise InputError(f"stream {key!r}: the argument {name!r} needs a type and a default")
    return {name: hints[name] for name in own}


def _record_arguments(made: type[Stream], arguments: dict[str, Any]) -> None:
    """After the constructor, `spec` has the values of its arguments, and `derived` the seed."""
    construct = made.__init__
    signature = inspect.signature(construct)

    @wraps(construct)
    def constructed(self: Stream, *positional: Any, **named: Any) -> None:
        construct(self, *positional, **named)
        if type(self) is not made:  # a subclass, which has arguments of its own
            return
        given = signature.bind(self, *positional, **named)
        given.apply_defaults()
        self.spec = {"stream": self.key} | {name: given.arguments[name] for name in arguments}
        if "seed" in given.arguments:
            self.derived["seed"] = given.arguments["seed"]

    made.__init__ = constructed  # type: ignore[method-assign]
