"""Prints lines of benchmarks/averages.py as two tables: the runs, and how the averages compare.

python benchmarks/averages_table.py results/lines/best-search.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from onepass.report.table import Cell, Table, markdown

SHOWN = ("student", "0.98", "0.99", "0.995", "0.998", "growing 16", "arrivals 0.25")
LITTLE = 0.5  # points, in the mean of final and any-time accuracy
Line = dict[str, Any]


def worth(line: Line) -> dict[str, float]:
    """Returns the criterion for each average: the mean of final and any-time accuracy."""
    found = line["summary"]
    return {name: (found[name]["final"] + found[name]["any-time"]) / 2 for name in SHOWN}


def of_run(line: Line) -> list[str]:
    """Returns the row of a run: final / any-time accuracy of each average, the best one marked."""
    order = ", shuffled" if line["class_order"] == "shuffled" else ""
    data = f"{line['method']}, {line['dataset']}, M={line['memory']}{order}"
    hidden = ("precision", "mirror")  # the same in all of these runs
    chosen = [f"{key}={value}" for key, value in line["settings"].items() if key not in hidden]
    best = max(worth(line).values())
    cells = [
        Cell(
            "{final:.1f} / {any-time:.1f}".format(**line["summary"][name]),
            rank=int(worth(line)[name] == best),
        )
        for name in SHOWN
    ]
    return [data, " ".join([line["preset"], *chosen]), line.get("teacher", ""), *cells]


def of_averages(method: str, lines: list[Line]) -> list[list[str]]:
    """Returns a row per average: how often it is best, how often within LITTLE of the best, and how
    far it is behind the best of each run."""
    rows = []
    for name in SHOWN:
        behind = [max(worth(line).values()) - worth(line)[name] for line in lines]
        best, close = sum(gap == 0 for gap in behind), sum(gap <= LITTLE for gap in behind)
        count = [f"{best} of {len(lines)}", str(close)]
        rows.append([method, name, *count, f"{mean(behind):.2f}", f"{max(behind):.1f}"])
    return rows


def main() -> None:
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    lines.sort(key=lambda line: (line["dataset"], line["memory"], line["class_order"]))
    print(markdown(Table(["run", "settings", "teacher", *SHOWN], list(map(of_run, lines)))))
    columns = ["method", "average", "best", f"within {LITTLE}", "behind, mean", "behind, most"]
    methods = dict.fromkeys(line["method"] for line in lines)
    own = {method: [line for line in lines if line["method"] == method] for method in methods}
    rows = [row for method in methods for row in of_averages(method, own[method])]
    print(markdown(Table(columns, rows)), end="")


if __name__ == "__main__":
    main()
