"""Replaces the table of all methods in README.md, between its two marks, from finished runs.

    python scripts/update_readme.py RUNS [README]

`make table` runs it; no row is written by hand. Methods stand in the order of their years, and
references that need all classes at once come last.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onepass.learning import registry
from onepass.learning.registry import MethodInfo
from onepass.report.layout import make_table
from onepass.report.rows import summarise
from onepass.report.table import Table, markdown
from onepass.runs.query import results as read

BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
# The variant stands with the method, the dataset is the same for all, and steps/s is that of one
# machine.
HIDDEN = ("variant", "dataset", "steps/s")


def remark(info: MethodInfo) -> str:
    """Returns why the method's row is not comparable with the others, or nothing."""
    if info.one_task:
        return " (all classes at once, not online)"
    if info.learner.traits.trains_to_score:
        return " (trains when it is scored)"
    return ""


def table(runs: Path) -> str:
    """Returns the table of all runs in a folder, as markdown."""
    infos = {info.key: info for info in registry.methods()}

    def order(row: list[str]) -> tuple[bool, int, str]:
        info = infos[row[0]]
        return info.one_task, info.year, info.key

    def name(row: list[str]) -> str:
        variant = row[header.index("variant")] if "variant" in header else ""
        return row[0] + (f" ({variant})" if variant else "") + remark(infos[row[0]])

    full = make_table(summarise(read(runs)))
    header = full.header
    shown = [column for column, name in enumerate(header) if name not in HIDDEN]
    rows = [
        [name(row), *(str(row[column]) for column in shown[1:])]  # `str`: nothing in bold
        for row in sorted(full.body, key=order)
    ]
    return markdown(Table([header[column] for column in shown], rows, above=full.above))


def updated(text: str, new: str) -> str:
    """Returns a document with a new table between its marks."""
    above, begin, rest = text.partition(BEGIN)
    _, end, below = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"no table to replace: the marks {BEGIN.strip()} and {END.strip()} lack")
    return f"{above}{begin}\n{new}\n{end}{below}"


def main(runs: str, readme: str = "README.md") -> None:
    path = Path(readme)
    path.write_text(updated(path.read_text(), table(Path(runs))))


if __name__ == "__main__":
    main(*sys.argv[1:])
