"""Tables that fit the width of the terminal and never cut a number.

Text wraps if there is too little room. Columns that still do not fit go into a second block below
the first, which repeats the key columns: those that identify a row.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from onepass.base.text import READABLE_ERRORS, printable
from onepass.report.layout import expect_columns
from onepass.report.table import is_number

GAP = 2
SHORT = 24  # a longer word may be cut; a column need not be wider than this for its words
WRAPPING = Console()
Column = Sequence[str]  # the name, then the cells


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table that fits the terminal, or $COLUMNS; an empty header is not printed.

    A file or a pipe has room for everything.
    """
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    room = shutil.get_terminal_size().columns if known else None
    # not typer.echo, which writes UTF-8 whatever the encoding of the stream is
    print(format_table(header, rows, room), end="", flush=True)


def print_rows(rows: Sequence[Mapping[str, object]], columns: str | None = None) -> None:
    """Prints rows given as dictionaries, at least one.

    `columns` is the value of `--columns`, which selects and orders the columns; None prints all.
    """
    expect_columns(column_names(columns), rows[0])
    header = column_names(columns) or list(rows[0])
    print_table(
        header, [["-" if row[key] is None else str(row[key]) for key in header] for row in rows]
    )


def column_names(columns: str | None) -> list[str]:
    """Splits the value of `--columns` at commas; returns an empty list for None."""
    return [] if columns is None else [name.strip() for name in columns.split(",")]


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], room: int | None = None
) -> str:
    """Returns a table of at most `room` characters per line, more only if a number needs them.

    >>> rows = [["er", "85.2 ± 1.4", "replay"]]
    >>> print(format_table(["method", "accuracy", "what"], rows, room=80), end="")
    method    accuracy  what
    ──────────────────────────
    er      85.2 ± 1.4  replay
    """
    first = header or [""] * max(map(len, rows), default=0)
    columns = [[*map(_printable, column)] for column in zip_longest(first, *rows, fillvalue="")]
    blocks = [columns] if room is None else _blocks(columns, room)
    return "\n".join(_format_block(block, room, bool(header)) for block in blocks)


def _blocks(columns: Sequence[Column], room: int) -> list[list[Column]]:
    """Splits the columns into blocks that fit; each block begins with the key columns."""
    if _least_width(columns) <= room:
        return [[*columns]]
    keys = _key_columns(columns, room)
    blocks = [[*keys]]
    for column in [column for column in columns if column not in keys]:
        if len(blocks[-1]) > len(keys) and _least_width([*blocks[-1], column]) > room:
            blocks.append([*keys])
        blocks[-1].append(column)
    return blocks


def _key_columns(columns: Sequence[Column], room: int) -> list[Column]:
    """Returns the leading columns that together identify a row within half of the room.

    If there are none, a column of row numbers and the first column take their role.
    """
    for count in range(1, len(columns)):
        rows = list(zip(*columns[:count], strict=True))
        if len(set(rows)) == len(rows) and _least_width(columns[:count]) <= room / 2:
            return [*columns[:count]]
    return [["#", *map(str, range(1, len(columns[0])))], columns[0]]


def _least_width(columns: Sequence[Column]) -> int:
    """Returns the width of a block whose columns are all as narrow as possible."""
    return _total_width(map(_narrowest_column, columns))


def _total_width(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths) - GAP


def _widest_cell(cells: Sequence[str]) -> int:
    return max(map(cell_len, cells), default=1)


def _narrowest_column(column: Column) -> int:
    """Returns the least width that cuts no number, and no word of at most SHORT characters."""
    wrapped, unwrapped = (column[:1], column[1:]) if _is_numeric(column) else (column, [])
    return max(min(SHORT, _widest_cell(" ".join(wrapped).split())), _widest_cell(unwrapped))


def _is_numeric(column: Column) -> bool:
    return all(map(is_number, column[1:]))


def _format_block(columns: Sequence[Column], room: int | None, with_header: bool) -> str:
    """Returns a block as text, with a rule below the header if it is for a terminal.

    rich's own table takes twenty times as long.
    """
    widths, right = _column_widths(columns, room), [*map(_is_numeric, columns)]
    header, *rows = [_format_row(cells, widths, right) for cells in zip(*columns, strict=True)] or [
        ""
    ]
    rule = "" if room is None else "─" * _total_width(widths) + "\n"
    return "".join([header, rule, *rows] if with_header else rows)


def _format_row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Returns a row as text, of as many lines as its longest wrapped cell."""
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for pieces in zip_longest(*wrapped, fillvalue=""):
        padded = []
        for piece, width, to_the_right in zip(pieces, widths, right, strict=True):
            space = " " * (width - cell_len(piece))
            padded.append(space + piece if to_the_right else piece + space)
        lines.append((" " * GAP).join(padded).rstrip() + "\n")
    return "".join(lines)


def _wrap(cell: str, width: int) -> list[str]:
    """Splits a cell into lines of at most `width` characters; a longer word is cut."""
    if cell_len(cell) <= width:
        return [cell]
    return [line.plain.rstrip() for line in Text(cell).wrap(WRAPPING, width, overflow="fold")]


def _column_widths(columns: Sequence[Column], room: int | None) -> list[int]:
    """Returns the width of each column.

    Columns start as narrow as possible. Each spare character goes to the column that is furthest,
    as a ratio, below the width it wants.
    """
    wanted = [*map(_widest_cell, columns)]
    if room is None:
        return wanted
    widths = [*map(_narrowest_column, columns)]
    for _ in range(min(room, _total_width(wanted)) - _total_width(widths)):
        lacking = [want / width for want, width in zip(wanted, widths, strict=True)]
        widths[lacking.index(max(lacking))] += 1
    return widths


def _printable(cell: str) -> str:
    """Returns a cell as the terminal will print it, so that its width can be measured."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    seen = printable(cell)
    return seen if seen.isascii() else seen.encode(encoding, READABLE_ERRORS).decode(encoding)
