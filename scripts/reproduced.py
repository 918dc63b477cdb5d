"""Prints how far our results reproduce the paper's Table 1 on a dataset.

    python scripts/reproduced.py mnist

It reads the lines in results/lines/ and lists the methods by verdict for each size of the memory.
Each comes with our distance in points, half its 95 % t-interval, and the number of seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onepass.gsa_paper.verdicts import CLOSE, FEWEST, VERDICTS, Judged, half_interval, judge
from onepass.report.table import Table, markdown
from onepass.runs.query import find_results

RESULTS = Path(__file__).parents[1] / "results" / "lines"
RULE = (
    f"Reproduced: {FEWEST} seeds or more, and the 95 % t-interval of our mean lies within {CLOSE:g}"
    " points of the published figure. Higher, lower: it lies outside of them. Undecided: neither."
    " Each method has our mean less the published figure, ± half the interval (number of seeds)."
    " What the paper's own ± is, its text does not say; it is not used."
)


def text(cell: Judged) -> str:
    """Returns a method with our distance, half the interval, and the number of seeds."""
    if cell.spread is None or cell.gap is None:
        return cell.method
    gap = f"{round(cell.gap, 1) + 0.0:+.1f}"
    if cell.spread.n == 1:
        return f"{cell.method} {gap}"
    return f"{cell.method} {gap} ± {half_interval(cell.spread):.1f} ({cell.spread.n})"


def table(dataset: str) -> Table:
    """Returns a table of methods, with a row for each verdict and a column for each memory size."""
    cells = sorted(judge(find_results(RESULTS), dataset), key=lambda cell: cell.gap or 0.0)
    memories = sorted({cell.memory for cell in cells})
    rows = []
    for verdict in VERDICTS:
        by_memory = [
            [cell for cell in cells if (cell.memory, cell.verdict) == (memory, verdict)]
            for memory in memories
        ]
        if any(by_memory):
            listed = [", ".join(map(text, here)) or "-" for here in by_memory]
            rows.append([verdict, *listed])
    return Table(["", *(f"M={memory}" for memory in memories)], rows, notes=[("", RULE)])


if __name__ == "__main__":
    print(markdown(table(*sys.argv[1:])), end="")
