"""Names and what they stand for, with the same rules for networks, streams and whatever comes."""

from __future__ import annotations

import logging
from typing import Any, Generic, TypeVar

from onepass.base import plugins
from onepass.base.errors import InputError, UnknownNameError
from onepass.base.text import quoted

Entry = TypeVar("Entry")
SEPARATORS = frozenset(":,=/\\")  # in what is typed, and in paths
log = logging.getLogger("onepass")


class Names(Generic[Entry]):
    """A registry of one kind of thing: a name is given once, an unknown one is answered with the
    nearest. What installed packages bring (their entry points of the `group`) is imported when it
    is asked for.

    >>> colours = Names[int]("colour")
    >>> colours.add("red", 0xFF0000, defined=Names)
    >>> colours["red"]
    16711680
    >>> colours["rad"]
    Traceback (most recent call last):
    ...
    onepass.base.errors.UnknownNameError: unknown colour 'rad'. Did you mean 'red'? Valid: red.
    """

    def __init__(self, kind: str, group: str = "") -> None:
        self.kind, self.group = kind, group
        self.entries: dict[str, Entry] = {}  # those that are here already
        self._places: dict[str, str] = {}

    def add(self, name: str, entry: Entry, *, defined: Any) -> None:
        """`defined` is the function or class that has the name. The same one may come again, as
        it does when a cell of a notebook is run twice; another one may not."""
        if not name or SEPARATORS & set(name):
            raise InputError(f"{quoted(name)} cannot be a {self.kind}'s name: it has : , = / or \\")
        place = f"{defined.__module__}.{defined.__qualname__}"
        if name in self.entries and self._places[name] != place:
            raise InputError(f"there is a {self.kind} {name!r} already: {self._places[name]}")
        self.entries[name], self._places[name] = entry, place

    def __getitem__(self, name: str) -> Entry:
        if name not in self:
            own = f" A {self.kind} of your own is found with --import MODULE."
            raise UnknownNameError(self.kind, name, self.names(), own if self.group else "")
        return self.entries[name]

    def get(self, name: str) -> Entry | None:
        return self.entries[name] if name in self else None

    def __contains__(self, name: str) -> bool:
        if name not in self.entries and name in self._installed():
            self._load(name)
        return name in self.entries

    def names(self) -> list[str]:
        """All that can be asked for; what is installed need not have been imported."""
        return list(dict.fromkeys([*self.entries, *self._installed()]))

    def all(self) -> dict[str, Entry]:
        """Everything, imported; what cannot be is left out, with a warning."""
        for name in sorted(self._installed().keys() - self.entries.keys()):
            try:
                self._load(name)
            except InputError as problem:
                log.warning("%s", problem)
        return dict(self.entries)

    def _load(self, name: str) -> None:
        """What is installed registers itself when it is imported."""
        entry = self._installed()[name]
        plugins.load(entry, self.kind)
        if name not in self.entries:
            raise InputError(f"{entry.value} was to register the {self.kind} {name!r}, and has not")

    def _installed(self) -> dict[str, Any]:
        return plugins.installed(self.group) if self.group else {}
