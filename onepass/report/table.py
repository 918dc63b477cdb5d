"""Tables, and their text in markdown, LaTeX and CSV."""

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
# Nothing, a dash, or a number with any of: deviation, unit, count of runs, letter of a note.
DISPLAYED_NUMBER = re.compile(
    r"-?|[-+<]?\.?\d[\d.,]*(e[-+]?\d+)?%?( ((±|\+-?) )?[\d.,]+| [a-zA-Z]{1,6})*"
    r"( \(\d+( of \d+)?\))?( \[[a-z]\])?",
    re.ASCII,
)


class Cell(str):
    """The text of a cell, with its `rank` (1: the best, 2: the second best, 0: neither) and the
    letter of its note."""

    rank: int
    note: str

    def __new__(cls, text: str, *, rank: int = 0, note: str = "") -> Self:
        cell = super().__new__(cls, text)
        cell.rank, cell.note = rank, note
        return cell


@dataclass(frozen=True)
class Table:
    """A header, rows of cells, and the texts around them: title, headings, notes."""

    header: Sequence[str]
    body: Sequence[Sequence[str]]
    groups: Sequence[str] = ()  # a heading above each column, which may be ""; (): no headings
    title: str = ""
    rules: Sequence[int] = ()  # indices of the rows with a rule above them, drawn in LaTeX
    notes: Sequence[tuple[str, str]] = field(default=())  # a letter (or "") and a text each
    above: str = ""  # a text above the table: the choices that all rows share

    @property
    def names(self) -> list[str]:
        """The names of the columns, each after the heading of its group."""
        headings = self.groups or [""] * len(self.header)
        return [
            f"{group} {name}".strip() for group, name in zip(headings, self.header, strict=True)
        ]


def plain_cell(cell: str) -> str:
    """Returns the cell as text for a terminal, with the letter of its note in brackets.

    >>> plain_cell(Cell("12.2 ± 1.9", note="a")), plain_cell("er")
    ('12.2 ± 1.9 [a]', 'er')
    """
    return f"{cell} [{cell.note}]" if isinstance(cell, Cell) and cell.note else str(cell)


def is_number(cell: str) -> bool:
    """Returns whether the cell is right-aligned: a number, the dash of a missing one, or empty.

    >>> is_number("12.2 ± 1.9 (3)"), is_number("-"), is_number("2.3 MB"), is_number("gsa")
    (True, True, True, False)
    """
    return DISPLAYED_NUMBER.fullmatch(cell) is not None


def plain_notes(table: Table) -> list[str]:
    """Returns the notes as texts for a terminal, each after its letter in brackets."""
    return [f"[{letter}] {text}" if letter else text for letter, text in table.notes]


# ---- markdown


def markdown(table: Table) -> str:
    """Returns the table as markdown: the best in bold, the second best in italics.

    >>> print(markdown(Table(["method", "n"], [["er", Cell("5", rank=1)]])), end="")
    | method | n |
    |---|---|
    | er | **5** |
    """
    title = f"### {_in_markdown(table.title)}\n\n" if table.title else ""
    above = f"{_in_markdown(table.above)}\n\n" if table.above else ""
    lines = (table.names, *table.body)
    first, *others = ["| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines]
    rows = "\n".join([first, "|" + "---|" * len(table.header), *others]) + "\n"
    notes = [
        (f"<sup>{letter}</sup> " if letter else "") + _in_markdown(text)
        for letter, text in table.notes
    ]
    return title + above + rows + "".join(f"\n{note}\n" for note in notes)


def _markdown_cell(cell: str) -> str:
    text = _in_markdown(cell)
    if isinstance(cell, Cell):
        sign = {1: "**", 2: "*"}.get(cell.rank, "")
        text = f"{sign}{text}{sign}" + (f" <sup>{cell.note}</sup>" if cell.note else "")
    return text


def _in_markdown(cell: str) -> str:
    """Returns the text with a backslash before all that markdown takes for a border, a style or
    HTML.

    Underscores within words and ampersands that begin no HTML entity are harmless and stay.
    """
    return re.sub(r"[\\`*\[\]<>|~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)", r"\\\g<0>", cell)


# ---- LaTeX


def latex(table: Table) -> str:
    """Returns the table as LaTeX for the package booktabs: the best in bold, the second best
    underlined.

    The notes are paragraphs below the table. A long note inside it would make a column wider.

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
    if table.above:
        title.append(rf"{{\footnotesize {_in_latex(table.above)}\par\smallskip}}")
    rows = [rf"\begin{{tabular}}{{{_alignment(table)}}}", r"\toprule", *_latex_groups(table)]
    rows += [_latex_row(table.header), r"\midrule"]
    for number, line in enumerate(table.body):
        rows += [r"\midrule"] * (number in table.rules) + [_latex_row(line)]
    rows += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*title, *rows, *_latex_notes(table)]) + "\n"


def _alignment(table: Table) -> str:
    """Returns a letter for each column: r (right) if all its cells are numbers, else l (left)."""
    columns = zip(table.header, *table.body, strict=True)
    return "".join("r" if all(map(is_number, cells)) else "l" for _, *cells in columns)


def _latex_notes(table: Table) -> list[str]:
    """Returns a paragraph per note, in small letters."""
    if not table.notes:
        return []
    notes = [f"{_superscript(letter)} {_in_latex(text)}".lstrip() for letter, text in table.notes]
    return [r"{\par\smallskip\footnotesize", *(rf"{note}\par" for note in notes), "}"]


def _latex_groups(table: Table) -> list[str]:
    """Returns the row of group headings and the rules below them; nothing without headings. A
    heading spans all columns of its group."""
    if not any(table.groups):
        return []
    cells, rules, column = [], [], 1
    for name, inside in groupby(table.groups):
        width = len(list(inside))
        wide = rf"\multicolumn{{{width}}}{{c}}{{{_in_latex(name)}}}"
        cells.append(wide if name else "& " * (width - 1))  # without a heading: empty cells
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
        text += _superscript(cell.note)
    return text


def _superscript(letter: str) -> str:
    return rf"\textsuperscript{{{letter}}}" if letter else ""


def _bold_number(text: str, rank: int) -> str:
    """Returns the text of a cell; if it is the best, with its formula's numbers in bold. \\textbf
    has no effect inside a formula."""
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
    # At the start of a row, LaTeX would read these as arguments of the \\ before it.
    **{letter: f"{{{letter}}}" for letter in "[*"},
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
}


def _in_latex(cell: str) -> str:
    """Returns the text with LaTeX's own characters escaped, and signed numbers as formulas."""
    if re.fullmatch(r"[+-][\d.]+", cell):  # in a formula, "-" is a minus sign and not a hyphen
        return f"${cell}$"
    escaped = "".join(LATEX.get(letter, letter) for letter in cell)
    dashed = re.sub(r"(?<!\S)-(?!\S)", "--", escaped)
    return re.sub(r"([+-]?[\d.]+) \$\\pm\$ ([\d.]+)", r"$\1 \\pm \2$", dashed)


# ---- comma-separated values


def comma_separated(table: Table) -> str:
    """Returns the names of the columns and the rows as CSV, without title and notes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for line in (table.names, *table.body):
        writer.writerow(map(_in_a_spreadsheet, line))
    return text.getvalue()


def _in_a_spreadsheet(cell: str) -> str:
    """Returns the cell, after an apostrophe if a spreadsheet would take its text for a formula."""
    # spreadsheets also take the wide and small forms of these signs, such as U+FF1D
    sign = unicodedata.normalize("NFKC", cell[:1])
    formula = sign in ("=", "+", "-", "@") and cell != "-"
    return f"'{cell}" if formula and not NUMBER.fullmatch(cell) else cell


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
