"""A stream from one line of text or one table: `long-tail:rho=100,tasks=10`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from onepass.data.base import Dataset
from onepass.errors import InputError, UnknownNameError
from onepass.settings import check, read
from onepass.streams.base import Stream
from onepass.streams.blurry import Blurry
from onepass.streams.class_incremental import ClassIncremental
from onepass.streams.long_tail import LongTail

STREAMS: dict[str, Callable[..., Stream]] = {
    "class-incremental": ClassIncremental,
    "long-tail": LongTail,
    "blurry": Blurry,
}


def parse(text: str) -> dict[str, Any]:
    """The table that a line of text stands for; whatever it does not say keeps its default.

    >>> parse("long-tail:rho=100,class_order=shuffled")
    {'stream': 'long-tail', 'rho': 100, 'class_order': 'shuffled'}
    >>> parse("class-incremental:boundaries=false")
    {'stream': 'class-incremental', 'boundaries': False}
    """
    name, _, rest = text.partition(":")
    table: dict[str, Any] = {"stream": name.strip()}
    valid = arguments(table["stream"])
    for pair in filter(None, rest.split(",")):
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals:
            raise InputError(f"a stream is NAME:KEY=VALUE,…; {pair!r} is not KEY=VALUE")
        if key not in valid:
            raise UnknownNameError(f"key of stream {table['stream']!r}", key, valid)
        if key in table:
            raise InputError(f"{key} is said twice in {text!r}")
        table[key] = read(key, value, valid[key])
    return table


def make(dataset: Dataset, table: Mapping[str, Any], *, seed: int) -> Stream:
    """The stream of a table, as TOML or `parse` gives it; an unknown key is an error."""
    chosen = dict(table)
    name = chosen.pop("stream", "class-incremental")
    valid = arguments(name)
    for key, value in chosen.items():
        if key not in valid:
            raise UnknownNameError(f"key of stream {name!r}", key, valid)
        if not (key == "tasks" and isinstance(value, list)):  # groups of classes, checked there
            check(key, value, valid[key])
    return STREAMS[name](dataset, seed=seed, **chosen)


def arguments(name: str) -> dict[str, Any]:
    """What a stream takes, besides dataset and seed, with types."""
    check("stream", name, str)
    if name not in STREAMS:
        raise UnknownNameError("stream", name, STREAMS)
    hints = get_type_hints(STREAMS[name].__init__)
    hints["tasks"] = int
    names = inspect.signature(STREAMS[name]).parameters
    return {key: hints[key] for key in names if key not in ("dataset", "seed")}
