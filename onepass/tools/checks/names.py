"""What checks there are, read from the source: to complete a name takes no torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from onepass.base import lazy
from onepass.base.errors import UnknownNameError
from onepass.base.text import first_sentence

HOME = "onepass.tools.checks"
MODULES = ("predicting", "learning", "repeating", "costing")  # in the order in which they run


def checks_in_module(module: str) -> dict[str, str]:
    """Returns the names of a module's checks, each with a sentence about it."""
    return {
        defined.name: first_sentence(ast.get_docstring(defined) or "")
        for defined in lazy.parse_module(f"{HOME}.{module}").body
        if isinstance(defined, ast.FunctionDef) and not defined.name.startswith("_")
    }


def check_summaries() -> dict[str, str]:
    """Returns the names of all checks, each with a sentence about it."""
    return {name: text for module in MODULES for name, text in checks_in_module(module).items()}


def select_names(only: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns those of the names that are asked for, in their own order: all if none is. They may
    be written with `-`, or as they are shown, with spaces.

    >>> select_names(["same-seed"], ["the_head_grows", "same_seed"])
    ['same_seed']
    """
    names = list(names)
    asked = {name: name.replace("-", "_").replace(" ", "_") for name in only}
    for name, meant in asked.items():
        if meant not in names:
            raise UnknownNameError("check", name if meant == name else meant, names)
    return [name for name in names if name in asked.values()] if asked else names
