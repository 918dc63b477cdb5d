"""What the commands share: the application, where to print, and small checks."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onepass import plugins
from onepass.errors import InputError, UnknownNameError
from onepass.settings import LARGEST
from onepass.words import READABLE, plain, quoted

app = typer.Typer(
    help="Online class-incremental learning: a stream seen once, bounded memory, predictions at "
    "any time.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _import(modules: list[str] | None) -> list[str]:
    plugins.import_named(modules or [])
    return modules or []


Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        callback=_import,
        help="A module that registers something of yours; repeatable.",
    ),
]
messages = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
terminal = sys.stdout is not None and sys.stdout.isatty()
printed = Console(highlight=False, width=None if terminal else 200, emoji=False)


def open_streams() -> None:
    """Standard output and error that take whatever is printed: closed ones take it to nowhere,
    others write letters that their encoding does not have in another way."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for good
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=READABLE)


def say(text: str) -> None:
    """A line on standard output in which names, paths and the like may stand."""
    typer.echo(plain(text))


def one_of(name: str, value: str, valid: tuple[str, ...]) -> Any:
    if value not in valid:
        raise UnknownNameError(f"value of {name}", value, valid)
    return value


def rich_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index > 1 else "left")
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    return table


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As `rich_table`, for many thousand rows, which that would take seconds for. Numbers stand to
    the right; a line may be longer than the terminal is wide."""
    lines = [[_shown(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    columns = [
        _padded(column, numbers=all(map(_is_number, column[bool(header) :])))
        for column in zip_longest(*lines, fillvalue="")
    ]
    text = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    if header:
        text.insert(1, "─" * max(map(cell_len, text)))
    return "".join(f"{line}\n" for line in text)


def _padded(column: Sequence[str], *, numbers: bool) -> list[str]:
    wide = [cell_len(cell) for cell in column]
    widest = max(wide)
    room = [" " * (widest - width) for width in wide]
    pairs = zip(room, column, strict=True) if numbers else zip(column, room, strict=True)
    return [f"{left}{right}" for left, right in pairs]


def _is_number(cell: str) -> bool:
    return cell in ("", "-") or cell.replace(".", "", 1).lstrip("-").isdecimal()


def _shown(cell: str) -> str:
    """As it will be printed, so that columns are as wide as that."""
    encoding = printed.encoding
    seen = plain(cell)
    return seen if seen.isascii() else seen.encode(encoding, READABLE).decode(encoding)


def whole(option: str, text: str, wanted: str) -> int:
    """The number, at least 1, that an option which also takes words was given."""
    digits = text if text.isdecimal() and len(text) <= len(str(LARGEST)) else "0"
    if not 1 <= int(digits) <= LARGEST:
        raise InputError(f"{option} takes {wanted}, not {quoted(text)}")
    return int(digits)
