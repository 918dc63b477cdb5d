"""Registries by name, with the same rules for methods, datasets, streams, networks and probes."""

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
SEPARATORS = frozenset(":,=/\\")  # they have a meaning on the command line and in paths
log = logging.getLogger("onepass")


class Declaration(NamedTuple):
    """A registration in a module of onepass, read from its source without importing it: the module,
    the decorator's keyword arguments, and the first sentence of the docstring."""

    module: str
    facts: dict[str, Any]
    summary: str


class Registry(Generic[Entry]):
    """Entries of one kind ("method", "dataset") by name. A name is given only once; the
    error for an unknown name suggests a similar one.

    The modules of onepass's package `home` register entries with a decorator named like the kind.
    Installed packages add theirs by entry points of the `group`. An entry is imported when it is
    first looked up.

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
        self.entries: dict[str, Entry] = {}  # only entries that have been imported
        self._definitions: dict[str, str] = {}  # module.qualname by name

    @cached_property
    def declared(self) -> dict[str, Declaration]:
        """The registrations in onepass's own modules by name, imported or not."""
        origins = lazy.origins(self.home).values() if self.home else ()
        return {
            name: declaration
            for module in dict.fromkeys(origin.module for origin in origins)
            for name, declaration in _declarations(module, self.kind)
        }

    def add(self, name: str, entry: Entry, *, defined: Any) -> None:
        """Registers an entry; `defined` is its function or class. Raises an InputError if the name
        is invalid or another one has it.

        A function or class of the same module and name replaces the earlier one, as when a
        notebook cell is run twice.
        """
        if not name or SEPARATORS & set(name):
            raise InputError(
                f"{quoted(name)} cannot be a {self.kind}'s name: it is empty, or has : , = / or \\"
            )
        definition = f"{defined.__module__}.{defined.__qualname__}"
        declared = self.declared.get(name)
        if declared and declared.module != defined.__module__:  # it may not be imported yet
            raise InputError(f"there is a {self.kind} {name!r} already, in {declared.module}")
        if name in self.entries and self._definitions[name] != definition:
            raise InputError(f"there is a {self.kind} {name!r} already: {self._definitions[name]}")
        self.entries[name], self._definitions[name] = entry, definition

    def __getitem__(self, name: str) -> Entry:
        if name not in self:
            own = f" For your own {self.kind}, give --import MODULE."
            raise UnknownNameError(self.kind, name, self.names(), own if self.group else "")
        return self.entries[name]

    def get(self, name: str) -> Entry | None:
        """Returns an entry, or None if the name is unknown."""
        return self.entries[name] if name in self else None

    def __contains__(self, name: str) -> bool:
        if name not in self.entries:
            if name in self.declared:
                import_module(self.declared[name].module)
            elif name in self._installed():
                self._load(name)
        return name in self.entries

    def names(self) -> list[str]:
        """Returns all valid names: our own, registered ones and those of installed packages."""
        return list(dict.fromkeys([*self.declared, *self.entries, *self._installed()]))

    def summaries(self) -> dict[str, str]:
        """Returns the first sentence of each entry's docstring by name; "" for an entry that is not
        onepass's own."""
        known = {name: declaration.summary for name, declaration in self.declared.items()}
        return dict.fromkeys(self.names(), "") | known

    def all(self) -> dict[str, Entry]:
        """Imports and returns all entries by name; leaves out, with a logged warning, an installed
        package's entry that cannot be imported."""
        for name in [*self.declared, *sorted(self._installed())]:
            try:
                name in self  # noqa: B015 - the lookup imports it
            except InputError as problem:
                log.warning("%s", problem)
        return {name: self.entries[name] for name in self.names() if name in self.entries}

    def _load(self, name: str) -> None:
        """Imports an installed package's entry. Raises an InputError if it does not register itself
        under this name."""
        entry = self._installed()[name]
        plugins.load_entry_point(entry, self.kind)
        if name not in self.entries:
            raise InputError(f"{entry.value} did not register the {self.kind} {name!r}")

    def _installed(self) -> dict[str, Any]:
        return plugins.installed_entry_points(self.group) if self.group else {}


def _declarations(module: str, kind: str) -> list[tuple[str, Declaration]]:
    """Returns the names that a module registers with the decorator `kind`, from its source."""
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
    facts = {
        keyword.arg: ast.literal_eval(keyword.value)
        for keyword in decorator.keywords
        if keyword.arg
    }
    return Declaration(module, facts, first_sentence(ast.get_docstring(defined) or ""))
