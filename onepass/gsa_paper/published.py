"""What others have published, as data: `published.csv`, and `doubtful.toml` on what is wrong there.

Where a value comes from is its `source`; of several for one cell, the one of the paper itself is
the first.
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
    """One published value, in percent; `deviation` and `runs` as far as the source tells them, and
    why it is not to be relied on, if so."""

    source: str
    method: str
    dataset: str
    memory: int
    metric: str
    value: str
    deviation: str
    runs: str
    doubt: str

    def __str__(self) -> str:
        return f"{self.value} ± {self.deviation}" if self.deviation else self.value


@cache
def published_values() -> tuple[PublishedValue, ...]:
    """All, in the order of the file, which is that of the paper's tables."""
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
            # only the paper's own are doubted, not what others found for the same cell
            doubt=doubts.get((entry["metric"], cell), "") if entry["source"] in PAPER else "",
        )
        for entry in csv.DictReader(io.StringIO(_text("published.csv")))
        for cell in [f"{entry['method']}/{entry['dataset']}/{entry['memory']}"]
    )


PAPER = ("gsa-paper-table1", "gsa-paper-table2", "gsa-paper-table3", "gsa-paper-text")


def values_for_cell(
    method: str, dataset: str, memory: int, metric: str = "accuracy"
) -> list[PublishedValue]:
    """Every figure for one cell, the paper's own first."""
    return _by_cell().get((method, dataset, memory, metric), [])


def published_beside(row: Row) -> tuple[str, str]:
    """Returns the published figures for a row of ours, each with its source, and why to doubt them;
    nothing unless it learned the paper's data and stream with the method's common settings."""
    alike = all(follows_paper(run) and not learning_variant(run) for run in row.results)
    found = values_for_cell(row.method, row.first.dataset_identity, row.memory) if alike else []
    return with_sources(found), "; ".join(figure.doubt for figure in found if figure.doubt)


def with_sources(found: Sequence[PublishedValue]) -> str:
    """Returns figures as printed, each with its source."""
    return "; ".join(f"{figure} ({figure.source})" for figure in found)


@cache
def _by_cell() -> dict[tuple[str, str, int, str], list[PublishedValue]]:
    found: dict[tuple[str, str, int, str], list[PublishedValue]] = {}
    for one in published_values():
        found.setdefault((one.method, one.dataset, one.memory, one.metric), []).append(one)
    return found


def _doubts() -> dict[tuple[str, str], str]:
    content = tomllib.loads(_text("doubtful.toml"))
    return {(one["metric"], cell): one["why"] for one in content["doubt"] for cell in one["cells"]}


def _text(name: str) -> str:
    return resources.files("onepass.gsa_paper").joinpath(name).read_text("utf-8")
