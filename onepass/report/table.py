"""A table as text that something else reads: markdown, LaTeX, comma-separated values."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Self

NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?", re.ASCII)
FOR_PEOPLE = re.compile(  # nothing, or a number with its deviation, unit, count of runs and note
    r"-?|[-+<]?\.?\d[\d.,]*(e[-+]?\d+)?%?( ((±|\+-?) )?[\d.,]+| [a-zA-Z]{1,6})*"
    r"( \(\d+( of \d+)?\))?( \[[a-z]\])?",
    re.ASCII,
)


class Cell(str):
    """A cell's text, and how it stands out: its `rank` (1: the best, 2: the second; 0: neither),
    and the letter of the note that is about it."""

    rank: int
    note: str

    def __new__(cls, text: str, *, rank: int = 0, note: str = "") -> Self:
        cell = super().__new__(cls, text)
        cell.rank, cell.note = rank, note
        return cell


@dataclass(frozen=True)
class Table:
    """Names of columns and rows of cells. `groups`: what stands above each column, if anything
    does; `parts`: the rows before which there is a rule; `notes`: what has to be said below, by
    its letter if it is about single cells."""

    header: Sequence[str]
    body: Sequence[Sequence[str]]
    groups: Sequence[str] = ()
    title: str = ""
    parts: Sequence[int] = ()
    notes: Sequence[tuple[str, str]] = field(default=())

    @property
    def names(self) -> list[str]:
        """Of the columns, with what stands above them."""
        above = self.groups or [""] * len(self.header)
        return [f"{a} {name}".strip() for a, name in zip(above, self.header, strict=True)]


def plain_cell(cell: str) -> str:
    """As a terminal shows it.

    >>> plain_cell(Cell("12.2 ± 1.9", note="a")), plain_cell("er")
    ('12.2 ± 1.9 [a]', 'er')
    """
    return f"{cell} [{cell.note}]" if isinstance(cell, Cell) and cell.note else str(cell)


def is_number(cell: str) -> bool:
    """Whether it stands to the right in its column, as what is missing among numbers does.

    >>> is_number("12.2 ± 1.9 (3)"), is_number("-"), is_number("2.3 MB"), is_number("gsa")
    (True, True, True, False)
    """
    return FOR_PEOPLE.fullmatch(cell) is not None


def plain_notes(table: Table) -> list[str]:
    return [f"[{letter}] {text}" if letter else text for letter, text in table.notes]


# ---- markdown


def markdown(table: Table) -> str:
    """>>> print(markdown(Table(["method", "n"], [["er", Cell("5", rank=1)]])), end="")
    | method | n |
    |---|---|
    | er | **5** |
    """
    title = f"### {_in_markdown(table.title)}\n\n" if table.title else ""
    lines = (table.names, *table.body)
    first, *others = ["| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines]
    rows = "\n".join([first, "|" + "---|" * len(table.header), *others]) + "\n"
    notes = [
        (f"<sup>{letter}</sup> " if letter else "") + _in_markdown(text)
        for letter, text in table.notes
    ]
    return title + rows + "".join(f"\n{note}\n" for note in notes)


def _markdown_cell(cell: str) -> str:
    text = _in_markdown(cell)
    if isinstance(cell, Cell):
        sign = {1: "**", 2: "*"}.get(cell.rank, "")
        text = f"{sign}{text}{sign}" + (f" <sup>{cell.note}</sup>" if cell.note else "")
    return text


def _in_markdown(cell: str) -> str:
    """Nothing in a cell ends it, sets it in another way, or is HTML. Underscores inside of words
    and lone ampersands mean nothing and stay as they are."""
    return re.sub(r"[\\`*\[\]<>|~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)", r"\\\g<0>", cell)


# ---- LaTeX


def latex(table: Table) -> str:
    """A booktabs table, with the best in bold and the second underlined; notes below it, where
    their length makes no column wider.

    >>> print(latex(Table(["method", "accuracy"], [["gsa", "90.1 ± 0.5"]])), end="")
    \\begin{tabular}{lr}
    \\toprule
    method & accuracy \\\\
    \\midrule
    gsa & $90.1 \\pm 0.5$ \\\\
    \\bottomrule
    \\end{tabular}
    """
    title = [f"% {_in_latex(table.title)}"] if table.title else []
    rows = [rf"\begin{{tabular}}{{{_sides(table)}}}", r"\toprule", *_latex_groups(table)]
    rows += [_latex_row(table.header), r"\midrule"]
    for number, line in enumerate(table.body):
        rows += [r"\midrule"] * (number in table.parts) + [_latex_row(line)]
    rows += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*title, *rows, *_latex_notes(table)]) + "\n"


def _sides(table: Table) -> str:
    """At which its columns stand: l or r for each."""
    columns = zip(table.header, *table.body, strict=True)
    return "".join("r" if all(map(is_number, cells)) else "l" for _, *cells in columns)


def _latex_notes(table: Table) -> list[str]:
    """Each a paragraph, in small letters as far as the group goes."""
    if not table.notes:
        return []
    said = [f"{_raised(letter)} {_in_latex(text)}".lstrip() for letter, text in table.notes]
    return [r"{\par\smallskip\footnotesize", *(rf"{one}\par" for one in said), "}"]


def _latex_groups(table: Table) -> list[str]:
    """The line above the names: one cell over all columns of a group, and a rule below it."""
    if not any(table.groups):
        return []
    cells, rules, column = [], [], 1
    for name, inside in groupby(table.groups):
        width = len(list(inside))
        wide = rf"\multicolumn{{{width}}}{{c}}{{{_in_latex(name)}}}"
        cells.append(wide if name else "& " * (width - 1))
        rules += [rf"\cmidrule(lr){{{column}-{column + width - 1}}}"] * bool(name)
        column += width
    return [" & ".join(cells) + r" \\", "".join(rules)]


def _latex_row(line: Sequence[str]) -> str:
    return " & ".join(map(_latex_cell, line)) + r" \\"


def _latex_cell(cell: str) -> str:
    text = _in_latex(cell)
    if isinstance(cell, Cell):
        sign = {1: r"\textbf", 2: r"\underline"}.get(cell.rank)
        text = f"{sign}{{{_bold_number(text, cell.rank)}}}" if sign else text
        text += _raised(cell.note)
    return text


def _raised(letter: str) -> str:
    return rf"\textsuperscript{{{letter}}}" if letter else ""


def _bold_number(text: str, rank: int) -> str:
    """Inside of a formula bold is a matter of its own."""
    if rank != 1:
        return text
    return re.sub(r"\$([+-]?[\d.]+ \\pm [\d.]+|[+-][\d.]+)\$", r"$\\mathbf{\1}$", text)


LATEX = {
    **{letter: rf"\{letter}" for letter in "_%&#{}$"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{letter: f"{{{letter}}}" for letter in "[*"},  # would belong to the end of the line before
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
}


def _in_latex(cell: str) -> str:
    if re.fullmatch(r"[+-][\d.]+", cell):  # a sign, not a hyphen
        return f"${cell}$"
    escaped = "".join(LATEX.get(letter, letter) for letter in cell)
    dashed = re.sub(r"(?<!\S)-(?!\S)", "--", escaped)
    return re.sub(r"([+-]?[\d.]+) \$\\pm\$ ([\d.]+)", r"$\1 \\pm \2$", dashed)


# ---- comma-separated values


def comma_separated(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for line in (table.names, *table.body):
        writer.writerow(map(_in_a_spreadsheet, line))
    return text.getvalue()


def _in_a_spreadsheet(cell: str) -> str:
    """A text that would be taken for a formula is marked as one, by the sign that spreadsheets
    have for that."""
    # spreadsheets also take the wide and small forms of these signs, such as U+FF1D
    sign = unicodedata.normalize("NFKC", cell[:1])
    formula = sign in ("=", "+", "-", "@") and cell != "-"
    return f"'{cell}" if formula and not NUMBER.fullmatch(cell) else cell


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
