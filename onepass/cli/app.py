"""What the commands share: the application, where to print, and small checks."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onepass.base import plugins
from onepass.base.errors import InputError, UnknownNameError
from onepass.base.settings import LARGEST_INT
from onepass.base.text import READABLE_ERRORS, printable, quoted

app = typer.Typer(
    help="Online class-incremental learning: a stream seen once, bounded memory, predictions at "
    "any time.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _import_modules(modules: list[str] | None) -> list[str]:
    plugins.import_modules(modules or [])
    return modules or []


Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        callback=_import_modules,
        help="A module that registers something of yours; repeatable.",
    ),
]
messages = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def prepare_output() -> None:
    """Standard output and error that take whatever is printed: closed ones take it to nowhere,
    others write letters that their encoding does not have in another way."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for good
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=READABLE_ERRORS)


def print_text(text: str) -> None:
    """A line on standard output in which names, paths and the like may stand."""
    typer.echo(printable(text))


def expect_one_of(name: str, value: str, valid: tuple[str, ...]) -> Any:
    if value not in valid:
        raise UnknownNameError(f"value of {name}", value, valid)
    return value


def parse_count(option: str, text: str, wanted: str) -> int:
    """The number, at least 1, that an option which also takes words was given."""
    digits = text if text.isdecimal() and len(text) <= len(str(LARGEST_INT)) else "0"
    if not 1 <= int(digits) <= LARGEST_INT:
        raise InputError(f"{option} takes {wanted}, not {quoted(text)}")
    return int(digits)
