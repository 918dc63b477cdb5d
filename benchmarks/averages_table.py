"""The lines of benchmarks/averages.py as tables: each run, and how each average compares.

python benchmarks/averages_table.py results/best-search.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

SHOWN = ("student", "0.98", "0.99", "0.995", "0.998", "growing 16", "arrivals 0.25")
LITTLE = 0.5  # points, in the mean of final and any-time accuracy
Line = dict[str, Any]


def worth(line: Line) -> dict[str, float]:
    """What averages are chosen by: the mean of final and any-time accuracy."""
    found = line["summary"]
    return {name: (found[name]["final"] + found[name]["any-time"]) / 2 for name in SHOWN}


def of_run(line: Line) -> str:
    order = ", shuffled" if line["class_order"] == "shuffled" else ""
    data = f"{line['method']}, {line['dataset']}, M={line['memory']}{order}"
    hidden = ("precision", "mirror")  # as everywhere on these data
    chosen = [f"{key}={value}" for key, value in line["settings"].items() if key not in hidden]
    best = max(worth(line).values())
    cells = []
    for name in SHOWN:
        text = "{final:.1f} / {any-time:.1f}".format(**line["summary"][name])
        cells.append(f"**{text}**" if worth(line)[name] == best else text)
    columns = [data, " ".join([line["preset"], *chosen]), line.get("teacher", ""), *cells]
    return "| " + " | ".join(columns) + " |"


def of_averages(method: str, lines: list[Line]) -> list[str]:
    """How far each is behind the best of its run."""
    rows = []
    for name in SHOWN:
        behind = [max(worth(line).values()) - worth(line)[name] for line in lines]
        best, close = sum(one == 0 for one in behind), sum(one <= LITTLE for one in behind)
        count = f"{best} of {len(lines)} | {close}"
        rows.append(f"| {method} | {name} | {count} | {mean(behind):.2f} | {max(behind):.1f} |")
    return rows


def header(*names: str) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]


def main() -> None:
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    lines.sort(key=lambda line: (line["dataset"], line["memory"], line["class_order"]))
    print("\n".join([*header("run", "settings", "teacher", *SHOWN), *map(of_run, lines)]))
    print()
    columns = ("method", "average", "best", f"within {LITTLE}", "behind, mean", "behind, most")
    print("\n".join(header(*columns)))
    for method in dict.fromkeys(line["method"] for line in lines):
        print("\n".join(of_averages(method, [one for one in lines if one["method"] == method])))


if __name__ == "__main__":
    main()
