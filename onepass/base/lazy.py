"""Packages whose names are imported when they are first used (PEP 562), so that nobody waits for
torch without needing it.

Such a package lists its names once, as imports under `if TYPE_CHECKING:`, which type checkers and
editors read as they stand; at run time they are read from there.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """Where a name comes from."""

    module: str
    name: str


def attach(package: str) -> tuple[Callable[[str], Any], list[str]]:
    """Returns `__getattr__` and `__all__` for a package."""
    names = origins(package)

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(names[name].module), names[name].name)
        setattr(sys.modules[package], name, value)
        return value

    return get, sorted(names)


def origins(package: str) -> dict[str, Origin]:
    """Returns where each name of a package comes from, in the order in which they are listed."""
    found: dict[str, Origin] = {}
    for statement in parse_module(package).body:
        if isinstance(statement, ast.If):  # the only one: if TYPE_CHECKING
            for imported in statement.body:
                assert isinstance(imported, ast.ImportFrom) and imported.module is not None
                for alias in imported.names:
                    if alias.name == "*":
                        found |= origins(imported.module)
                    else:
                        origin = Origin(imported.module, alias.name)
                        found[alias.asname or alias.name] = origin
    return found


def parse_module(module: str) -> ast.Module:
    """Returns the source of a module, which need not have been imported."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return ast.parse(Path(spec.origin).read_text("utf-8"))
