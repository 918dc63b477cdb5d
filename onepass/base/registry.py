"""Names and what they stand for, with the same rules for networks, streams and whatever comes."""

from __future__ import annotations

import ast
import logging
from functools import cached_property
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

from onepass.base import lazy, plugins
from onepass.base.errors import InputError, UnknownNameError
from onepass.base.text import first_sentence, quoted

Entry = TypeVar("Entry")
SEPARATORS = frozenset(":,=/\\")  # in what is typed, and in paths
log = logging.getLogger("onepass")


class Declaration(NamedTuple):
    """A decorator in a module of ours, read from its source: where it stands, the arguments beside
    the name, and what the function or class says about itself."""

    module: str
    facts: dict[str, Any]
    summary: str


class Registry(Generic[Entry]):
    """A registry of one kind of thing: a name is given once, an unknown one is answered with the
    nearest. Ours are registered in the modules of a package `home`, by a decorator that is called
    like the kind; installed packages bring others (their entry points of the `group`). Both are
    imported when they are asked for.

    >>> colours = Registry[int]("colour")
    >>> colours.add("red", 0xFF0000, defined=Registry)
    >>> colours["red"]
    16711680
    >>> colours["rad"]
    Traceback (most recent call last):
    ...
    onepass.base.errors.UnknownNameError: unknown colour 'rad'. Did you mean 'red'? Valid: red.
    """

    def __init__(self, kind: str, group: str = "", home: str = "") -> None:
        self.kind, self.group, self.home = kind, group, home
        self.entries: dict[str, Entry] = {}  # those that have been imported
        self._places: dict[str, str] = {}

    @cached_property
    def declared(self) -> dict[str, Declaration]:
        """Ours, which need not have been imported."""
        origins = lazy.origins(self.home).values() if self.home else ()
        return {
            name: declaration
            for module in dict.fromkeys(origin.module for origin in origins)
            for name, declaration in _declarations(module, self.kind)
        }

    def add(self, name: str, entry: Entry, *, defined: Any) -> None:
        """`defined` is the function or class that has the name. The same one may come again, as
        it does when a cell of a notebook is run twice; another one may not."""
        if not name or SEPARATORS & set(name):
            raise InputError(f"{quoted(name)} cannot be a {self.kind}'s name: it has : , = / or \\")
        place = f"{defined.__module__}.{defined.__qualname__}"
        ours = self.declared.get(name)
        if ours and ours.module != defined.__module__:  # even if that is not imported yet
            raise InputError(f"there is a {self.kind} {name!r} already, in {ours.module}")
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
        if name not in self.entries:
            if name in self.declared:
                import_module(self.declared[name].module)
            elif name in self._installed():
                self._load(name)
        return name in self.entries

    def names(self) -> list[str]:
        """Returns all that can be asked for; what is installed need not have been imported."""
        return list(dict.fromkeys([*self.declared, *self.entries, *self._installed()]))

    def summaries(self) -> dict[str, str]:
        """Returns each name with a sentence about it, if its module is ours."""
        ours = {name: declaration.summary for name, declaration in self.declared.items()}
        return dict.fromkeys(self.names(), "") | ours

    def all(self) -> dict[str, Entry]:
        """Returns everything, imported; what cannot be is left out, with a warning."""
        for name in [*self.declared, *sorted(self._installed())]:
            try:
                name in self  # noqa: B015 - imports it
            except InputError as problem:
                log.warning("%s", problem)
        return {name: self.entries[name] for name in self.names() if name in self.entries}

    def _load(self, name: str) -> None:
        """What is installed registers itself when it is imported."""
        entry = self._installed()[name]
        plugins.load_entry_point(entry, self.kind)
        if name not in self.entries:
            raise InputError(f"{entry.value} was to register the {self.kind} {name!r}, and has not")

    def _installed(self) -> dict[str, Any]:
        return plugins.installed_entry_points(self.group) if self.group else {}


def _declarations(module: str, kind: str) -> list[tuple[str, Declaration]]:
    return [
        (ast.literal_eval(decorator.args[0]), _declaration(module, decorator, defined))
        for defined in lazy.parse_module(module).body
        if isinstance(defined, ast.FunctionDef | ast.ClassDef)
        for decorator in defined.decorator_list
        if isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Name)
        and decorator.func.id == kind
    ]


def _declaration(
    module: str, decorator: ast.Call, defined: ast.FunctionDef | ast.ClassDef
) -> Declaration:
    facts = {word.arg: ast.literal_eval(word.value) for word in decorator.keywords if word.arg}
    return Declaration(module, facts, first_sentence(ast.get_docstring(defined) or ""))
