"""Names and what they stand for, with the same rules for networks, streams and whatever comes."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from onepass.errors import InputError, UnknownNameError

Entry = TypeVar("Entry")


class Names(Generic[Entry]):
    """A registry of one kind of thing: a name is given once, an unknown one is answered with the
    nearest.

    >>> colours = Names[int]("colour")
    >>> colours.add("red", 0xFF0000, defined=Names)
    >>> colours["red"]
    16711680
    >>> colours["rad"]
    Traceback (most recent call last):
    ...
    onepass.errors.UnknownNameError: unknown colour 'rad'. Did you mean 'red'? Valid: red.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries: dict[str, Entry] = {}
        self._places: dict[str, str] = {}

    def add(self, name: str, entry: Entry, *, defined: Any) -> None:
        """`defined` is the function or class that has the name. The same one may come again, as
        it does when a cell of a notebook is run twice; another one may not."""
        place = f"{defined.__module__}.{defined.__qualname__}"
        if name in self.entries and self._places[name] != place:
            raise InputError(f"there is a {self.kind} {name!r} already: {self._places[name]}")
        self.entries[name], self._places[name] = entry, place

    def __getitem__(self, name: str) -> Entry:
        if name not in self.entries:
            raise UnknownNameError(self.kind, name, self.entries)
        return self.entries[name]
