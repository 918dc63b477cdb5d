"""Lazy packages (PEP 562): a name is imported when it is first used, so that `import onepass` and
short commands do not wait for torch.

A lazy package lists its names as imports under `if TYPE_CHECKING:`. Type checkers and editors read
them as usual; at run time this module parses the same lines.
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
    """The module that defines a name, and its name there."""

    module: str
    name: str


def attach(package: str) -> tuple[Callable[[str], Any], list[str]]:
    """Returns `__getattr__` and `__all__` for a lazy package."""
    names = origins(package)

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(names[name].module), names[name].name)
        setattr(sys.modules[package], name, value)  # the next access does not come here
        return value

    return get, sorted(names)


def origins(package: str) -> dict[str, Origin]:
    """Returns the origin of each name of a lazy package, in the order of its imports."""
    found: dict[str, Origin] = {}
    for statement in parse_module(package).body:
        if isinstance(statement, ast.If):  # `if TYPE_CHECKING:`, the only one
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
    """Returns the syntax tree of a module without importing it."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return ast.parse(Path(spec.origin).read_text("utf-8"))
