"""Makes a stream from text (`long-tail:rho=100,tasks=10`), or from a table: a dict with the
stream's name under `stream`, and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onepass.base.errors import InputError, UnknownNameError
from onepass.base.settings import expect_type, parse_setting
from onepass.base.text import quoted
from onepass.data.base import Dataset
from onepass.streams.base import Stream
from onepass.streams.classes import Tasks
from onepass.streams.registry import STREAMS

DEFAULT_STREAM = "class-incremental"  # if a table does not name a stream


def parse_stream(text: str) -> dict[str, Any]:
    """Returns the table for a text NAME:KEY=VALUE,…; it holds only the arguments that are given.
    Raises an error for an unknown name or key, or a wrong value.

    >>> parse_stream("long-tail:rho=100,class_order=shuffled")
    {'stream': 'long-tail', 'rho': 100, 'class_order': 'shuffled'}
    >>> parse_stream("class-incremental:boundaries=false")
    {'stream': 'class-incremental', 'boundaries': False}
    """
    name, _, rest = text.partition(":")
    table: dict[str, Any] = {"stream": name.strip()}
    valid = arguments(table["stream"])
    for pair in filter(None, rest.split(",")):
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals:
            raise InputError(f"a stream is NAME:KEY=VALUE,…; {quoted(pair)} is not KEY=VALUE")
        if key not in valid:
            raise UnknownNameError(f"key of stream {table['stream']!r}", key, valid)
        if key in table:
            raise InputError(f"{key} is given twice in {quoted(text)}")
        table[key] = parse_setting(key, value, _text_type(valid[key]))
        expect_type(key, table[key], _text_type(valid[key]))
    return table


def parse_with_options(
    text: str, options: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the table for a stream's text together with command-line options.

    Raises an InputError if the stream does not take an option in `options`, or if text and option
    differ. Values in `usual` are for arguments that the stream has and that are still missing.

    >>> parse_with_options("long-tail:rho=10", {"batch": 5}, {"class_order": "natural"})
    {'stream': 'long-tail', 'rho': 10, 'batch': 5, 'class_order': 'natural'}
    >>> parse_with_options("long-tail:batch=2", {"batch": 5}, {})
    Traceback (most recent call last):
    ...
    onepass.base.errors.InputError: --stream says batch=2, --batch says 5
    """
    table = parse_stream(text)
    valid = arguments(table["stream"])
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if name not in valid:
            takes = ", ".join(valid) or "nothing"
            raise InputError(f"stream {table['stream']!r} takes no {option}; it takes: {takes}")
        if table.setdefault(name, value) != value:
            raise InputError(f"--stream says {name}={table[name]}, {option} says {value}")
    return with_defaults(table, usual)


def with_defaults(table: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the table with values from `usual` for missing arguments that the stream has."""
    valid = arguments(table.get("stream", DEFAULT_STREAM))
    missing = {name: usual[name] for name in usual if name in valid and name not in table}
    return {**table, **missing}


def make_stream(dataset: Dataset, table: Mapping[str, Any], *, seed: int) -> Stream:
    """Returns the stream of a table, as TOML or `parse_stream` gives it. Raises an error for an
    unknown key or a wrong value."""
    chosen = dict(table)
    name = chosen.pop("stream", DEFAULT_STREAM)
    valid = arguments(name)
    for key, value in chosen.items():
        if key not in valid:
            raise UnknownNameError(f"key of stream {name!r}", key, valid)
        if not (valid[key] == Tasks and isinstance(value, list)):  # deal_classes checks groups
            expect_type(key, value, _text_type(valid[key]))
    found = STREAMS[name]
    seeded = {"seed": seed} if found.seeded else {}
    return found.make(dataset=dataset, **seeded, **chosen)


def arguments(name: str) -> dict[str, Any]:
    """Returns the types of a stream's arguments, besides dataset and seed."""
    expect_type("stream", name, str)
    return STREAMS[name].arguments


def _text_type(annotation: Any) -> Any:
    """Returns the type in which text gives an argument: tasks as a number, never as groups."""
    return int if annotation == Tasks else annotation
