"""Puts the table of finished runs into README.md, between its two marks: a row for every method.

    python scripts/update_readme.py RUNS [README]

Run by `make table`; no row is written by hand. References that need all classes at once come last,
the others in the order of their years, and a remark says what a row's numbers do not show.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onepass.learning import registry
from onepass.learning.registry import MethodInfo
from onepass.report.layout import make_table
from onepass.report.rows import summarise
from onepass.report.table import Table, markdown
from onepass.runs.query import find_results as read

BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
HIDDEN = ("variant", "dataset", "steps/s")  # with the method; the same for all; of one machine


def remark(info: MethodInfo) -> str:
    """What makes a method's row not comparable with the others, from what it says of itself."""
    if info.one_task:
        return " (all classes at once, not online)"
    if info.learner.traits.trains_to_score:
        return " (trains when it is scored)"
    return ""


def table(runs: Path) -> str:
    infos = {info.key: info for info in registry.methods()}

    def place(row: list[str]) -> tuple[bool, int, str]:
        info = infos[row[0]]
        return info.one_task, info.year, info.key

    def name(row: list[str]) -> str:
        variant = row[header.index("variant")] if "variant" in header else ""
        return row[0] + (f" ({variant})" if variant else "") + remark(infos[row[0]])

    made = make_table(summarise(read(runs)))
    header = made.header
    shown = [column for column, name in enumerate(header) if name not in HIDDEN]
    lines = [
        [name(line), *(str(line[column]) for column in shown[1:])]  # nothing in bold
        for line in sorted(made.body, key=place)
    ]
    return markdown(Table([header[column] for column in shown], lines))


def updated(text: str, made: str) -> str:
    """A document with another table between its marks, and the rest as it was."""
    above, begin, rest = text.partition(BEGIN)
    _, end, below = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"no table to replace: {BEGIN.strip()} and {END.strip()} are not there")
    return f"{above}{begin}\n{made}\n{end}{below}"


def main(runs: str, readme: str = "README.md") -> None:
    path = Path(readme)
    path.write_text(updated(path.read_text(), table(Path(runs))))


if __name__ == "__main__":
    main(*sys.argv[1:])
