"""Updates the table in docs/methods.md from finished runs, one row for each method.

    python scripts/update_methods_page.py RUNS [PAGE]

`make table` runs this script, so that no row is written by hand. Rows are ordered by year of
publication, and references that train on all classes at once come last. A remark marks methods
whose numbers cannot be compared with the others.
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
# `variant` is appended to the method, `dataset` never varies, `steps/s` depends on the machine
HIDDEN = ("variant", "dataset", "steps/s")


def remark(info: MethodInfo) -> str:
    """Returns why a method's row cannot be compared with the others, or an empty text."""
    if info.one_task:
        return " (all classes at once, not online)"
    if info.learner.traits.trains_to_score:
        return " (trains when it is scored)"
    return ""


def table(runs: Path) -> str:
    """Returns the table of the finished runs as Markdown."""
    infos = {info.key: info for info in registry.methods()}

    def position(row: list[str]) -> tuple[bool, int, str]:
        info = infos[row[0]]
        return info.one_task, info.year, info.key

    def name(row: list[str]) -> str:
        variant = row[header.index("variant")] if "variant" in header else ""
        return row[0] + (f" ({variant})" if variant else "") + remark(infos[row[0]])

    full = make_table(summarise(read(runs)))
    header = full.header
    columns = [index for index, name in enumerate(header) if name not in HIDDEN]
    rows = [
        [name(row), *(str(row[index]) for index in columns[1:])]  # str drops the bold marks
        for row in sorted(full.body, key=position)
    ]
    return markdown(Table([header[index] for index in columns], rows, above=full.above))


def updated(text: str, new_table: str) -> str:
    """Returns the page with the text between its two marks replaced."""
    above, begin, rest = text.partition(BEGIN)
    _, end, below = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"no table to replace: {BEGIN.strip()} and {END.strip()} are not there")
    return f"{above}{begin}\n{new_table}\n{end}{below}"


def main(runs: str, page: str = "docs/methods.md") -> None:
    path = Path(page)
    path.write_text(updated(path.read_text(), table(Path(runs))))


if __name__ == "__main__":
    main(*sys.argv[1:])
