"""Tables in a terminal: as wide as it is, and no number is ever cut.

Text is wrapped where there is too little room. Columns that still have no room stand below the
others, beside those columns again that tell the rows apart.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from onepass.base.text import READABLE, plain
from onepass.report.layout import check_columns
from onepass.report.table import is_number

GAP = "  "
LONG = 80  # letters of a line that a rule follows to its end
SHORT = 24  # letters of a word that text is not made narrower for
wrapping = Console(width=SHORT)


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; without a header, its cells only."""
    print(table(header, rows, _room()), end="", flush=True)  # typer's echo knows UTF-8 only


def show_rows(rows: Sequence[Mapping[str, object]], columns: str | None = None) -> None:
    """Prints rows that know the names of their columns; `--columns` may choose among them."""
    check_columns(names(columns), rows[0])
    header = names(columns) or list(rows[0])
    show(header, [["-" if row[key] is None else str(row[key]) for key in header] for row in rows])


def _room() -> int | None:
    """The width of the terminal, or what $COLUMNS says; a file or a pipe has room for all."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def names(columns: str | None) -> list[str]:
    """What `--columns` was given; without it, none."""
    return [] if columns is None else [name.strip() for name in columns.split(",")]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], room: int | None = None) -> str:
    """A table that is at most as wide as there is room, and wider only if one number is.

    >>> print(table(["method", "accuracy", "what"], [["er", "85.2 ± 1.4", "replay"]]), end="")
    method    accuracy  what
    ──────────────────────────
    er      85.2 ± 1.4  replay
    """
    first = header or [""] * max(map(len, rows), default=0)
    columns = [
        Column([_shown(cell) for cell in column])
        for column in zip_longest(first, *rows, fillvalue="")
    ]
    blocks = [columns] if room is None else _blocks(columns, room)
    return "\n".join(_text(block, room, bool(header)) for block in blocks)


@dataclass(frozen=True)
class Column:
    """The name of a column, and its cells."""

    cells: list[str]

    @cached_property
    def numbers(self) -> bool:
        """Which stand to the right, and are never wrapped; their name may be."""
        return all(map(is_number, self.cells[1:]))

    @cached_property
    def widths(self) -> list[int]:
        return [cell_len(cell) for cell in self.cells]

    @cached_property
    def widest(self) -> int:
        return max(self.widths)

    @cached_property
    def least(self) -> int:
        """The width below which a number or a word would be cut; a very long word is."""
        wrapped = self.cells[:1] if self.numbers else self.cells
        words = [cell_len(word) for cell in wrapped for word in re.findall(r"^ *[^ ]+|[^ ]+", cell)]
        whole = self.widths[1:] if self.numbers else []
        return max([1, *(min(SHORT, width) for width in words), *whole])


def _blocks(columns: list[Column], room: int) -> list[list[Column]]:
    """The columns in groups that have room; every group begins with what tells the rows apart."""
    if _width([column.least for column in columns]) <= room:
        return [columns]
    keys, others = _telling_apart(columns, room)
    blocks = [list(keys)]
    for column in others:
        wider = [one.least for one in (*blocks[-1], column)]
        if len(blocks[-1]) > len(keys) and _width(wider) > room:
            blocks.append(list(keys))
        blocks[-1].append(column)
    return blocks


def _telling_apart(columns: list[Column], room: int) -> tuple[list[Column], list[Column]]:
    """The first columns that do, and the others; if these would take up half of the room, the first
    one with a number for each row."""
    for count in range(1, len(columns)):
        if _width([column.least for column in columns[:count]]) > room / 2:
            break
        rows = list(zip(*(column.cells for column in columns[:count]), strict=True))
        if len(set(rows)) == len(rows):
            return columns[:count], columns[count:]
    numbers = Column(["#", *map(str, range(1, len(columns[0].cells)))])
    return [numbers, columns[0]], columns[1:]


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _text(block: Sequence[Column], room: int | None, with_header: bool) -> str:
    widths = _given(block, room)
    numbers = [column.numbers for column in block]
    rows = list(zip(*(column.cells for column in block), strict=True))
    header = list(_lines(rows[0], widths, numbers)) if with_header else []
    body = [line for row in rows[1:] for line in _lines(row, widths, numbers)]
    rule = ["─" * _rule(list(map(cell_len, header)), list(map(cell_len, body)))] if header else []
    return "".join(f"{line}\n" for line in header + rule + body)


def _rule(header: Sequence[int], body: Sequence[int]) -> int:
    """As long as the lines above and below; where text goes on and on, as into a pipe, it stops."""
    return min(max(*header, *body, 0), max(*header, LONG))


def _given(block: Sequence[Column], room: int | None) -> list[int]:
    """How wide each column is; while there is room, the one that lacks most of it gets more."""
    wanted = [column.widest for column in block]
    if room is None:
        return wanted
    widths = [column.least for column in block]
    for _ in range(min(room, _width(wanted)) - _width(widths)):
        lacking = [want / width for want, width in zip(wanted, widths, strict=True)]
        widths[lacking.index(max(lacking))] += 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> Iterator[str]:
    """A row, on as many lines as its longest cell takes."""
    cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        line = [_padded(*one) for one in zip(parts, widths, numbers, strict=True)]
        yield GAP.join(line).rstrip()


def _wrapped(cell: str, width: int) -> list[str]:
    if cell_len(cell) <= width:
        return [cell]
    indent = cell[: len(cell) - len(cell.lstrip())]
    return [f"{indent}{line.plain.rstrip()}" for line in _fold(cell.strip(), width - len(indent))]


def _fold(text: str, width: int) -> Iterable[Text]:
    return Text(text).wrap(wrapping, width, overflow="fold")


def _padded(cell: str, width: int, number: bool) -> str:
    room = " " * (width - cell_len(cell))
    return f"{room}{cell}" if number else f"{cell}{room}"


def _shown(cell: str) -> str:
    """As it will be printed, so that columns are as wide as that."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    seen = plain(cell)
    return seen if seen.isascii() else seen.encode(encoding, READABLE).decode(encoding)
