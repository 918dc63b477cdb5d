"""The registry of streams by name. A new stream is one file and one import in
`streams/__init__.py`.
"""

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
    """The name and the constructor of a registered stream; the types and the defaults of its
    arguments besides dataset and seed; and whether it takes a seed."""

    key: str
    make: Callable[..., Stream]
    arguments: dict[str, Any]
    defaults: dict[str, Any]
    seeded: bool


STREAMS = Registry[StreamInfo]("stream", "onepass.streams", "onepass.streams")


def stream(key: str) -> Callable[[type[S]], type[S]]:
    """Returns a decorator that registers a stream class under a name.

    Its constructor takes `dataset`, `seed` if it draws anything, and arguments of its own, each
    with a type and a default. The command line, TOML tables and `spec` use these arguments."""

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
    """Returns the types of the constructor's arguments besides dataset and seed. Raises an
    InputError if it takes no dataset, or if an argument lacks a type or a default."""
    hints = get_type_hints(made.__init__)
    own = dict(inspect.signature(made).parameters)
    if own.pop("dataset", None) is None:
        raise InputError(f"stream {key!r}: the constructor must take a dataset")
    own.pop("seed", None)
    for name, parameter in own.items():
        if name not in hints or parameter.default is inspect.Parameter.empty:
            raise InputError(f"stream {key!r}: the argument {name!r} needs a type and a default")
    return {name: hints[name] for name in own}


def _record_arguments(made: type[Stream], arguments: dict[str, Any]) -> None:
    """Wraps the constructor, so that it sets `spec` to the stream's name and the values of its
    arguments, and adds the seed to `derived`."""
    construct = made.__init__
    signature = inspect.signature(construct)

    @wraps(construct)
    def constructed(self: Stream, *positional: Any, **named: Any) -> None:
        construct(self, *positional, **named)
        if type(self) is not made:  # a subclass has other arguments
            return
        given = signature.bind(self, *positional, **named)
        given.apply_defaults()
        self.spec = {"stream": self.key} | {name: given.arguments[name] for name in arguments}
        if "seed" in given.arguments:
            self.derived["seed"] = given.arguments["seed"]

    made.__init__ = constructed  # type: ignore[method-assign]
