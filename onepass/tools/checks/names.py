"""The names of the checks, read from the source, so that a shell completes them without torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from onepass.base import lazy
from onepass.base.errors import UnknownNameError
from onepass.base.text import first_sentence

HOME = "onepass.tools.checks"
MODULES = ("predicting", "learning", "repeating", "costing", "sums")  # in their order


def checks_in_module(module: str) -> dict[str, str]:
    """Returns the names of a module's checks with the first sentence of their docstrings."""
    return {
        defined.name: first_sentence(ast.get_docstring(defined) or "")
        for defined in lazy.parse_module(f"{HOME}.{module}").body
        if isinstance(defined, ast.FunctionDef) and not defined.name.startswith("_")
    }


def check_summaries() -> dict[str, str]:
    """Returns the names of all checks with the first sentence of their docstrings."""
    return {name: text for module in MODULES for name, text in checks_in_module(module).items()}


def select_names(only: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns the names that are in `only`, in the order of `names`; all if `only` is empty.

    `only` may write a name with `_`, with `-`, or with spaces, as `onepass check` prints it.

    >>> select_names(["same-seed"], ["the_head_grows", "same_seed"])
    ['same_seed']
    """
    names = list(names)
    wanted = {name: name.replace("-", "_").replace(" ", "_") for name in only}
    for name, meant in wanted.items():
        if meant not in names:
            raise UnknownNameError("check", name if meant == name else meant, names)
    return [name for name in names if name in wanted.values()] if wanted else names
