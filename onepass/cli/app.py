"""Shared by all commands: the typer application, the two output streams, and parsers of values."""

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
        help="Import your own module, which registers a method, dataset, ...; repeatable.",
    ),
]
messages = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
if messages.width < 1:  # COLUMNS=0: rich would print nothing, not even an error
    messages.width = 80


def prepare_output() -> None:
    """Makes standard output and standard error accept every text.

    A stream that is closed is replaced by the null device. Characters that the encoding of a stream
    lacks are replaced by readable ones.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until exit
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=READABLE_ERRORS)


def print_text(text: str) -> None:
    """Prints text on standard output, with control characters escaped.

    Names and paths may hold escape sequences, which a terminal would obey.
    """
    typer.echo(printable(text))


def expect_one_of(name: str, value: str, valid: tuple[str, ...]) -> Any:
    """Returns the value; raises UnknownNameError if it is not valid.

    `name` is the option or argument. The error suggests the nearest valid value.
    """
    if value not in valid:
        raise UnknownNameError(f"value of {name}", value, valid)
    return value


def parse_count(option: str, text: str, wanted: str) -> int:
    """Returns the number, at least 1, of an option that takes a number or a word.

    `wanted` says in the error what the option takes. The length is limited before `int`, because
    Python refuses to convert thousands of digits.
    """
    digits = text if text.isdecimal() and len(text) <= len(str(LARGEST_INT)) else "0"
    if not 1 <= int(digits) <= LARGEST_INT:
        raise InputError(f"{option} takes {wanted}, not {quoted(text)}")
    return int(digits)
