"""What a shell is told when somebody presses Tab.

The shell starts `onepass` anew for each Tab, and torch alone takes more than a second to import. So
the first Tab after an installation or a change asks the real commands and keeps what they said
(`onepass.cli.completing`); from then on a copy of them, made from that, answers before anything
else is imported. Both are typer's, which knows the shells.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.base.cache_dir import cache_root

if TYPE_CHECKING:
    import typer

ASKED = "_ONEPASS_COMPLETE"  # what typer's scripts set
Stored = dict[str, Any]


def answer() -> None:
    """If a shell asks, and what there is to say is stored: says it, and ends the program."""
    if ASKED in os.environ and (stored := read()):
        tell(stored)


def tell(stored: Stored) -> None:
    """Answers a shell, and ends the program."""
    _copy(stored["commands"], stored["settings"])(prog_name="onepass")


def file() -> Path:
    return cache_root() / "completion.json"


def stamp() -> str:
    """Another one after every change of the package, and of what is installed, which may bring
    methods too."""
    package = Path(__file__).parent
    installed = [Path(place) for place in sys.path if place.endswith("-packages")]
    changed = [
        one.stat().st_mtime_ns for one in (*package.rglob("*.py"), *installed) if one.exists()
    ]
    return f"{package} {max(changed)}"


def read() -> Stored | None:
    """What was stored, unless it is of another state of the package, or damaged."""
    try:
        stored = json.loads(file().read_text("utf-8"))
        return stored if stored["stamp"] == stamp() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _copy(group: Stored, settings: dict[str, list[list[str]]]) -> typer.Typer:
    """Commands with the names, options and words of the real ones, which do nothing."""
    import typer

    app = typer.Typer()
    app.callback()(_function(group["parameters"], settings))
    for name, inner in group["commands"].items():
        if inner["commands"]:
            app.add_typer(_copy(inner, settings), name=name, help=inner["help"])
        else:
            function = _function(inner["parameters"], settings)
            app.command(name, help=inner["help"])(function)
    return app


def _function(
    parameters: Iterable[Stored], settings: dict[str, list[list[str]]]
) -> Callable[..., None]:
    """A function of which typer reads these parameters."""
    import typer

    def nothing() -> None:
        pass

    signature, types = [], {}
    for one in parameters:
        kind: Any = bool if one["flag"] else list[str] if one["several"] else str
        words = _settings(settings) if "--set" in one["options"] else _words(one["words"])
        told = {"help": one["help"], "autocompletion": words}
        info = typer.Option if one["options"] else typer.Argument
        default = info(None, *one["options"], **told)
        place = inspect.Parameter.KEYWORD_ONLY
        signature.append(inspect.Parameter(one["name"], place, default=default, annotation=kind))
        types[one["name"]] = kind
    nothing.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    nothing.__annotations__ = types
    return nothing


def _words(words: list[list[str]]) -> Callable[[], list[tuple[str, ...]]]:
    return lambda: [tuple(word) for word in words]


def _settings(settings: dict[str, list[list[str]]]) -> Callable[..., list[tuple[str, ...]]]:
    """Of the methods that are typed already, or of all."""
    import typer

    def words(context: typer.Context) -> list[tuple[str, ...]]:
        typed = [word for word in context.args if word in settings] or list(settings)
        return list(dict.fromkeys(tuple(word) for method in typed for word in settings[method]))

    words.__annotations__ = {"context": typer.Context}
    return words
