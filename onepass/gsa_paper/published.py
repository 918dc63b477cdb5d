"""Reads published accuracies and forgetting from `published.csv`, and the reasons to doubt some of
them from `doubtful.toml`.

A *cell* is a method on a dataset with a size of the memory. It may have values of several sources.
The GSA paper's own come first.
"""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from onepass.gsa_paper.protocol import follows_paper, learning_variant
from onepass.report.rows import Row


@dataclass(frozen=True)
class PublishedValue:
    """One published value, in percent, with the source that printed it."""

    source: str
    method: str
    dataset: str
    memory: int
    metric: str
    value: str
    deviation: str  # empty if the source does not print it
    runs: str  # number of runs, empty if unknown
    doubt: str  # why the value is doubtful, empty if it is not

    def __str__(self) -> str:
        return f"{self.value} ± {self.deviation}" if self.deviation else self.value


@cache
def published_values() -> tuple[PublishedValue, ...]:
    """Returns all values in the order of the file, which begins with the paper's tables."""
    doubts = _doubts()
    return tuple(
        PublishedValue(
            source=entry["source"],
            method=entry["method"],
            dataset=entry["dataset"],
            memory=int(entry["memory"]),
            metric=entry["metric"],
            value=entry["value"],
            deviation=entry["std"],
            runs=entry["runs"],
            # A doubt is about the paper's own value, not about another source's for the same cell.
            doubt=doubts.get((entry["metric"], cell), "") if entry["source"] in PAPER else "",
        )
        for entry in csv.DictReader(io.StringIO(_text("published.csv")))
        for cell in [f"{entry['method']}/{entry['dataset']}/{entry['memory']}"]
    )


PAPER = ("gsa-paper-table1", "gsa-paper-table2", "gsa-paper-table3", "gsa-paper-text")


def values_for_cell(
    method: str, dataset: str, memory: int, metric: str = "accuracy"
) -> list[PublishedValue]:
    """Returns the values of all sources for one cell, the paper's own first; empty without any."""
    return _by_cell().get((method, dataset, memory, metric), [])


def published_beside(row: Row) -> tuple[str, str]:
    """Returns the published accuracies for a row of ours, with their sources, and the reasons to
    doubt them.

    Both texts are empty unless all runs of the row learned the paper's stream with the method's
    common settings.
    """
    alike = all(follows_paper(run) and not learning_variant(run) for run in row.results)
    values = values_for_cell(row.method, row.first.dataset_identity, row.memory) if alike else []
    return with_sources(values), "; ".join(value.doubt for value in values if value.doubt)


def with_sources(values: Sequence[PublishedValue]) -> str:
    """Returns the values as printed, each with its source."""
    return "; ".join(f"{value} ({value.source})" for value in values)


@cache
def _by_cell() -> dict[tuple[str, str, int, str], list[PublishedValue]]:
    by_cell: dict[tuple[str, str, int, str], list[PublishedValue]] = {}
    for value in published_values():
        cell = (value.method, value.dataset, value.memory, value.metric)
        by_cell.setdefault(cell, []).append(value)
    return by_cell


def _doubts() -> dict[tuple[str, str], str]:
    """Returns the reason to doubt a value, by metric and METHOD/DATASET/MEMORY."""
    content = tomllib.loads(_text("doubtful.toml"))
    return {
        (doubt["metric"], cell): doubt["why"]
        for doubt in content["doubt"]
        for cell in doubt["cells"]
    }


def _text(name: str) -> str:
    return resources.files("onepass.gsa_paper").joinpath(name).read_text("utf-8")
