"""Prints lines of benchmarks/averages.py as tables that compare BatchNorm statistics.

The statistics are those used for prediction; results/norms.md explains the columns.

python benchmarks/norms_table.py results/lines/norms.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from onepass.report.table import Cell, Table, markdown

# the rule of averaging in the method's preset; other methods use `arrivals 0.25`
PREDICTS = {"er": "growing 16", "derpp": "growing 16"}
COLUMNS = {
    "running": [""],
    "memory": [", memory's norms"],
    "1/3 new": [", 0.33 new"],
    "1/2 new": [", 0.5 new", ", half new"],  # of a thousand samples, of all stored ones
    "2/3 new": [", 0.67 new"],
    "at most 18": [", capped"],
    "mirrored": [", mirrored"],
}
HIDDEN = ("precision", "norms")  # `norms` does not change training
Line = dict[str, Any]


def found(line: Line) -> dict[str, dict[str, float]]:
    """Returns final and any-time accuracy by column, for the columns that the run scored."""
    rule = PREDICTS.get(line["method"], "arrivals 0.25")
    scored = {}
    for column, endings in COLUMNS.items():
        names = [rule + ending for ending in endings if rule + ending in line["summary"]]
        if names:
            scored[column] = line["summary"][names[0]]
    if line["settings"].get("norms") == "mix":
        scored["X^mix"] = scored.pop("running")
    return scored


def of_run(line: Line) -> list[str]:
    """Returns the row of a run: final / any-time accuracy by column, the best one marked."""
    more = ", shuffled" if line["class_order"] == "shuffled" else ""
    more += f", seed {line['seed']}" if line["seed"] else ""
    more += f", {line['tasks']} tasks" if line.get("tasks") else ""
    data = f"{line['method']}, {line['dataset']}, M={line['memory']}{more}"
    chosen = [f"{key}={value}" for key, value in line["settings"].items() if key not in HIDDEN]
    scored = found(line)
    best = max(sum(pair.values()) for pair in scored.values())
    cells = [
        Cell("{final:.1f} / {any-time:.1f}".format(**pair), rank=int(sum(pair.values()) == best))
        if (pair := scored.get(column))
        else "-"
        for column in ("running", "X^mix", *list(COLUMNS)[1:])
    ]
    return [data, " ".join(chosen), *cells]


def means(lines: list[Line]) -> list[list[str]]:
    """Returns a row for `gsa` with joint and one with separate forward passes.

    A column has the mean of final and any-time accuracy over the runs of seed 0, or "-" unless all
    of them scored it.
    """
    rows = []
    for forwards in ("joint", "separate"):
        of_cells = [
            found(line)
            for line in lines
            if (line["method"], line["seed"]) == ("gsa", 0)
            and {k: v for k, v in line["settings"].items() if k != "precision"}
            == {"forwards": forwards}
        ]
        row = [f"gsa, forwards={forwards}", str(len(of_cells))]
        for column in COLUMNS:
            scored = [mean(cell[column].values()) for cell in of_cells if column in cell]
            row.append(f"{mean(scored):.1f}" if len(scored) == len(of_cells) else "-")
        rows.append(row)
    return rows


def softly(line: Line) -> str:
    """Returns final / any-time accuracy of each average `softly`, as text.

    These averages predict with the memory's capped statistics.
    """
    found = {name: pair for name, pair in line["summary"].items() if "softly" in name}
    capped = {name.split(", ")[1]: found[name] for name in found if name.endswith(", capped")}
    pattern = "{final:.1f} / {any-time:.1f}"
    return ", ".join(f"{pattern.format(**pair)} ({rule})" for rule, pair in capped.items())


def main() -> None:
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    lines.sort(key=lambda line: (line["method"] != "gsa", line["dataset"], line["memory"]))
    columns = ["run", "settings, beside best's", "running", "X^mix", *list(COLUMNS)[1:]]
    print(markdown(Table(columns, list(map(of_run, lines)))))
    print(markdown(Table(["mean of", "cells", *COLUMNS], means(lines))))
    gains = [
        mean(scored["mirrored"].values()) - mean(as_trained.values())
        for scored in map(found, lines)
        if "mirrored" in scored
        for as_trained in [scored.get("running") or scored["X^mix"]]
    ]
    for line in lines:
        if line.get("tasks"):
            print(f"{of_run(line)[0]}, averages that forget softly, at most 18: {softly(line)}.\n")
    print(f"Mirror images gain {mean(gains):.2f} on average, {min(gains):.2f} to {max(gains):.2f}.")


if __name__ == "__main__":
    main()
