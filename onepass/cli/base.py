"""What the commands share: the application, where to print, and small checks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onepass.errors import UnknownNameError

app = typer.Typer(
    help="Online class-incremental learning: a stream seen once, bounded memory, predictions at "
    "any time.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
messages = Console(stderr=True, highlight=False, soft_wrap=True)
printed = Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def one_of(name: str, value: str, valid: tuple[str, ...]) -> Any:
    if value not in valid:
        raise UnknownNameError(f"value of {name}", value, valid)
    return value


def rich_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index > 1 else "left")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
