"""Prints how far our results reproduce the paper's Table 1 on a dataset.

    python scripts/reproduced.py mnist

It reads the lines in results/lines/. For each size of the memory it lists the methods within three
points of the published figure, those further above, those further below, and those that were not
run. Each method comes with our distance in points and the number of seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onepass.gsa_paper.tables import long_table
from onepass.report.table import Table, markdown
from onepass.runs.query import find_results as read

RESULTS = Path(__file__).parents[1] / "results" / "lines"
CLOSE = 3.0  # points
Gap = tuple[float, str]  # how many points ours is above, and the text of the cell


def verdict(gap: float) -> str:
    """Returns the row for a difference in points."""
    if abs(gap) <= CLOSE:
        return f"within {CLOSE:g}: reproduced"
    return "ours is higher" if gap > 0 else "ours is lower"


def table(dataset: str) -> Table:
    """Returns a table of methods, with a row for each verdict and a column for each memory size."""
    long = long_table("table1", read(RESULTS), datasets=[dataset])
    cells = [dict(zip(long.header, row, strict=True)) for row in long.body]
    figures = [cell for cell in cells if cell["published"] and not cell["variant"]]
    memories = list(dict.fromkeys(cell["memory"] for cell in figures))
    by_verdict: dict[str, dict[str, list[Gap]]] = {
        name: {memory: [] for memory in memories} for name in map(verdict, (0, 99, -99))
    }
    missing: dict[str, list[str]] = {memory: [] for memory in memories}
    for cell in figures:
        if not cell["accuracy"]:
            missing[cell["memory"]].append(cell["method"])
            continue
        gap = round(float(cell["accuracy"]) - float(cell["published"]), 1) + 0.0
        text = f"{cell['method']} {gap:+.1f} ({cell['n']})"
        by_verdict[verdict(gap)][cell["memory"]].append((gap, text))
    rows = [
        [name, *(", ".join(text for _, text in sorted(gaps)) or "-" for gaps in by_memory.values())]
        for name, by_memory in by_verdict.items()
    ]
    if any(missing.values()):
        rows.append(["not run", *(", ".join(names) or "-" for names in missing.values())])
    return Table(["", *(f"M={memory}" for memory in memories)], rows)


if __name__ == "__main__":
    print(markdown(table(*sys.argv[1:])), end="")
