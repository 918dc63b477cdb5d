"""Finished runs as a table: one row per method, dataset, memory and variant, over its seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from onepass.record import finished_runs

HEADER = (
    "method",
    "variant",
    "dataset",
    "memory",
    "accuracy",
    "forgetting",
    "any-time",
    "n",
    "steps/s",
    "passes/sample",
)


@dataclass(frozen=True)
class Spread:
    """A mean over n runs, and the sample standard deviation (none for one run)."""

    mean: float
    deviation: float | None

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Spread | None:
        """Nothing where a value is missing.

        >>> print(Spread.over([90.0, 92.0, 94.0]))
        92.0 ± 2.0
        """
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(mean(known), stdev(known) if len(known) > 1 else None)

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.1f}"
        return f"{self.mean:.1f} ± {self.deviation:.1f}"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    method: str
    variant: str
    dataset: str
    memory: int
    accuracy: Spread
    forgetting: Spread | None
    anytime: Spread | None
    runs: int
    steps_per_second: float
    passes: str


def read(folder: Path) -> list[dict[str, Any]]:
    """The results of every finished run at or below a folder."""
    return [result for run in finished_runs(folder) if (result := run.result()) is not None]


def summarise(results: Sequence[dict[str, Any]]) -> list[Row]:
    """One row per method, variant, dataset and memory, in the order in which they first come."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        key = tuple(result[name] for name in ("dataset", "memory", "method", "variant"))
        groups.setdefault(key, []).append(result)
    return [_row(group) for group in groups.values()]


def _row(group: list[dict[str, Any]]) -> Row:
    def over(name: str) -> Spread | None:
        return Spread.over(result[name] for result in group)

    first = group[0]
    accuracy = over("accuracy")
    assert accuracy is not None
    scored = first["scored_per_sample"]
    return Row(
        method=first["method"],
        variant=first["variant"],
        dataset=first["dataset"],
        memory=first["memory"],
        accuracy=accuracy,
        forgetting=over("forgetting"),
        anytime=over("anytime_accuracy"),
        runs=len(group),
        steps_per_second=mean(result["steps_per_second"] for result in group),
        passes=f"{first['trained_per_sample']:.1f}" + (f" + {scored:.1f}" if scored else ""),
    )


def cells(row: Row) -> list[str]:
    return [
        row.method,
        row.variant,
        row.dataset,
        str(row.memory),
        str(row.accuracy),
        str(row.forgetting or "-"),
        str(row.anytime or "-"),
        str(row.runs),
        f"{row.steps_per_second:.0f}",
        row.passes,
    ]


def grid(rows: Sequence[Row], *, published: bool = False) -> tuple[list[str], list[list[str]]]:
    """Header and cells; a column of variants only if there are any."""
    header, body = list(HEADER), [cells(row) for row in rows]
    if published:
        figures = published_accuracies()
        header.append("published")
        for row, line in zip(rows, body, strict=True):
            line.append(figures.get((row.method, row.dataset, row.memory), "-"))
    if not any(row.variant for row in rows):
        place = header.index("variant")
        del header[place]
        for line in body:
            del line[place]
    return header, body


def published_accuracies() -> dict[tuple[str, str, int], str]:
    """Accuracies as printed by their sources, by method, dataset and memory."""
    text = resources.files("onepass.report").joinpath("published.csv").read_text()
    found: dict[tuple[str, str, int], list[str]] = {}
    for entry in csv.DictReader(io.StringIO(text)):
        if entry["metric"] == "accuracy":
            spread = f" ± {entry['std']}" if entry["std"] else ""
            key = (entry["method"], entry["dataset"], int(entry["memory"]))
            found.setdefault(key, []).append(f"{entry['value']}{spread} ({entry['source']})")
    return {key: "; ".join(values) for key, values in found.items()}


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """>>> print(markdown(["method", "n"], [["er", "5"]]), end="")
    | method | n |
    |---|---|
    | er | 5 |
    """
    lines = [header, ["---"] * len(header), *body]
    rule = "|" + "---|" * len(header)
    text = ["| " + " | ".join(line) + " |" for line in lines]
    text[1] = rule
    return "\n".join(text) + "\n"


def latex(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A booktabs table.

    >>> print(latex(["method", "accuracy"], [["gsa", "90.1 ± 0.5"]]), end="")
    \\begin{tabular}{ll}
    \\toprule
    method & accuracy \\\\
    \\midrule
    gsa & $90.1 \\pm 0.5$ \\\\
    \\bottomrule
    \\end{tabular}
    """

    def cell(text: str) -> str:
        escaped = text.replace("_", r"\_").replace("%", r"\%")
        return f"${escaped.replace('±', chr(92) + 'pm')}$" if "±" in escaped else escaped

    lines = [" & ".join(cell(one) for one in line) + r" \\" for line in (header, *body)]
    rows = [r"\begin{tabular}{" + "l" * len(header) + "}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*rows, *lines[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


def comma_separated(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(body)
    return text.getvalue()


FORMATS: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
