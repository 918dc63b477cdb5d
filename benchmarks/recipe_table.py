"""Prints a table of the recipe of `--preset best` with each loss.

    python benchmarks/recipe_table.py results/lines/best.jsonl results/lines/recipe.jsonl

Columns are accuracies, budgets of images, and differences from `gsa`. The script reads lines of
`onepass sweep` and keeps the runs of `best` on CIFAR in the natural order of classes, without a
validation split. Learning accuracy is the mean, over tasks, of a task's accuracy just after it was
learned.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from onepass.report.significance import compare_paired
from onepass.report.table import Table, markdown

Line = dict[str, Any]
SIZES = {"cifar100": (1000, 2000, 5000), "cifar10": (200, 500, 1000)}
METHODS = ("er", "er-ace", "gsa, all rivals", "gsa")
ENDS = ("forgetting", "anytime_accuracy", "accuracy")
HEADER = (
    *("method", "n", "trained", "shown", "seconds"),
    *("learning", "newest", "forgetting", "any-time", "final"),
    *("minus gsa, any-time", "p", "minus gsa, final", "p"),
)


def method_of(line: Line) -> str:
    """Returns the method, with "all rivals" if its loss is plain cross-entropy over all classes."""
    plain = line["settings"].get("rivals") == "all" and line["settings"]["weights"] == "none"
    return f"{line['method']}, all rivals" if plain else str(line["method"])


def learning(line: Line) -> float:
    """Returns the mean accuracy of the tasks just after each was learned.

    >>> learning({"accuracy_matrix": [[80.0, None], [50.0, 70.0]]})
    75.0
    """
    return mean(float(row[task]) for task, row in enumerate(line["accuracy_matrix"]))


def is_counted(line: Line) -> bool:
    """Returns whether a line is a run of `best` on CIFAR in the natural order, scored on the test
    set."""
    natural = line["stream_settings"].get("class_order") == "natural"
    chosen = str(line["variant"]).split()[:1] == ["best"]
    return line["dataset"] in SIZES and natural and chosen and not line["validation"]


def spread(values: list[float]) -> str:
    deviation = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{deviation}"


def by_seed(lines: list[Line], key: str) -> dict[int, float]:
    return {line["seed"]: line[key] for line in lines}


def minus(lines: list[Line], gsa: list[Line], key: str) -> list[str]:
    """Returns the mean difference from `gsa` over the seeds of both, and the t-test's p, as text.

    Both are "-" for `gsa` itself and without shared seeds.
    """
    found = compare_paired(by_seed(lines, key), by_seed(gsa, key))
    if not found.differences or lines is gsa:
        return ["-", "-"]
    values = list(found.differences)
    deviation = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    p = "-" if found.t_test is None else f"{found.t_test:.3f}"
    return [f"{mean(values):+.1f}{deviation}", p]


def row(method: str, lines: list[Line], gsa: list[Line]) -> list[str]:
    first = lines[0]
    return [
        *(method, str(len(lines))),
        *(f"{first[name]:.1f}" for name in ("trained_per_sample", "scored_per_sample")),
        f"{mean(line['seconds'] for line in lines):.0f}",
        spread([learning(line) for line in lines]),
        spread([line["accuracy_matrix"][-1][-1] for line in lines]),
        *(spread([line[key] for line in lines]) for key in ENDS),
        *minus(lines, gsa, "anytime_accuracy"),
        *minus(lines, gsa, "accuracy"),
    ]


def main() -> None:
    texts = [text for path in sys.argv[1:] for text in Path(path).read_text().splitlines()]
    lines = list(filter(is_counted, map(json.loads, texts)))
    rows = []
    for dataset, sizes in SIZES.items():
        for size in sizes:
            here = [line for line in lines if (line["dataset"], line["memory"]) == (dataset, size)]
            own = {name: [line for line in here if method_of(line) == name] for name in METHODS}
            for name in METHODS:
                if own[name]:
                    rows.append([dataset, str(size), *row(name, own[name], own["gsa"])])
    print(markdown(Table(["data", "memory", *HEADER], rows)))


if __name__ == "__main__":
    main()
