"""Checks the numbers on the first pages against the lines in results/lines/.

    python scripts/check_numbers.py

results/numbers.toml lists sentences of the pages with a placeholder for each number, and where the
number comes from. This script computes them anew and looks for the sentences. It exits with an
error for each sentence that is not on its page, and for each number on README.md or
results/README.md that no sentence has. `make results` runs it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from string import Formatter
from typing import Any

from onepass.data.catalogue import CATALOGUE
from onepass.gsa_paper.published import values_for_cell
from onepass.gsa_paper.tables import Cells
from onepass.gsa_paper.verdicts import judge
from onepass.learning import registry
from onepass.report.rows import Row, Spread, summarise
from onepass.report.significance import compare_paired
from onepass.runs.query import find_results
from onepass.runs.result import Result

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "results" / "numbers.toml"
COVERED = ("README.md", "results/README.md")  # every number on these needs a sentence
MEASURED = {"accuracy": "accuracy", "any-time": "anytime_accuracy", "forgetting": "forgetting"}
REFERENCES = {"finetune", "joint"}  # methods that nobody published
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
# Numbers that are no results: sizes of the memory, code, and the targets of links
SETTINGS = re.compile(r"M ?= ?\d+(?:(?:,| and) \d+)*|`[^`]*`|\]\([^)]*\)|GSA paper \(CVPR 2023\)")
Piece = tuple[str, bool]  # some text of a sentence, and whether it was computed


class Numbers:
    """Computes numbers from results, published figures and the registry of methods.

    A query is a list whose first entry names the quantity. `quantities` lists them with the entries
    that follow.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = results
        self.cells = Cells.of(results, "accuracy")
        # what does not follow the paper: other datasets, and joint training
        others = [
            run
            for run in results
            if run.dataset_identity not in CATALOGUE or run.method in REFERENCES
        ]
        self.others = {
            (row.method, str(row.variant), row.first.dataset_identity, row.memory): row
            for row in summarise(others)
        }
        self.judged = {
            dataset: judge(results, dataset) for dataset in ("mnist", "cifar10", "cifar100")
        }
        self.quantities = {
            "learning": self.learning,
            "trained": self.trained,
            "lead": self.lead,
            "p": self.p,
            "published": self.published,
            "short": self.short,
            "verdict": self.verdict,
            "cells": self.count,
            "methods": lambda: len(set(registry.METHODS.names()) - REFERENCES),
        }

    def value(self, query: Sequence[Any]) -> Any:
        """Returns the value of a query: a Spread over seeds, a number or a word."""
        name, *where = query
        if name in MEASURED:
            return self.row(*where).over(MEASURED[name])
        return self.quantities[name](*where)

    def row(self, method: str, dataset: str, memory: int) -> Row:
        """Returns the row of a method, or of a method and a preset such as "gsa best"."""
        name, _, preset = method.partition(" ")
        row = self.cells.get((name, preset), dataset, memory)
        row = row or self.others.get((name, preset, dataset, memory))
        assert row is not None, f"no line of {method} on {dataset}, M={memory}"
        return row

    def learning(self, method: str, dataset: str, memory: int) -> Spread | None:
        """Returns the accuracy of tasks 2 to T, each just after it was learned."""
        matrices = [run.accuracy_matrix for run in self.row(method, dataset, memory).results]
        return Spread.over(
            mean(float(row[task] or 0.0) for task, row in enumerate(matrix) if task)
            for matrix in matrices
        )

    def trained(self, method: str, dataset: str, memory: int) -> float:
        """Returns the images trained for each batch of the stream."""
        first = self.row(method, dataset, memory).first
        return (first.trained_per_sample or 0.0) * first.batch

    def lead(self, method: str, other: str, dataset: str, memory: int) -> Spread | None:
        """Returns how far a method ends ahead of another, over the seeds that both have."""
        ours, theirs = self.row(method, dataset, memory), self.row(other, dataset, memory)
        return Spread.over(compare_paired(ours.accuracies, theirs.accuracies).differences)

    def p(self, method: str, other: str, dataset: str, memory: int) -> float | None:
        ours, theirs = self.row(method, dataset, memory), self.row(other, dataset, memory)
        return compare_paired(ours.accuracies, theirs.accuracies).t_test

    def published(self, method: str, dataset: str, memory: int) -> float:
        return float(values_for_cell(method, dataset, memory)[0].value)

    def short(self, method: str, dataset: str, memory: int) -> float:
        """Returns how far a method ends below its published figure."""
        ours = self.row(method, dataset, memory).accuracy.mean
        return self.published(method, dataset, memory) - ours

    def verdict(self, method: str, dataset: str, memory: int) -> str:
        return next(
            cell.verdict
            for cell in self.judged[dataset]
            if (cell.method, cell.memory) == (method, memory)
        )

    def count(self, verdict: str, datasets: str, memory: int | None = None) -> int:
        """Returns the number of the paper's cells with a verdict, or "any"."""
        return sum(
            verdict in (cell.verdict, "any") and memory in (cell.memory, None)
            for dataset in datasets.split()
            for cell in self.judged[dataset]
        )


def faults(listed: Mapping[str, Any], pages: Mapping[str, str], numbers: Numbers) -> list[str]:
    """Returns an error for each sentence that is not on its page, and for each number on a page of
    COVERED that comes from nowhere. `pages` are the texts by path."""
    found = {page: _plain(text) for page, text in pages.items()}
    covered = {page: [m.span() for m in SETTINGS.finditer(text)] for page, text in found.items()}
    errors = []
    for page, settings in listed["settings"].items():
        for text in settings:
            covered[page] += [m.span() for m in re.finditer(re.escape(text), found[page])]
    for sentence in listed["sentence"]:
        page, pieces = sentence["page"], list(_pieces(sentence, numbers))
        text = "".join(piece for piece, _ in pieces)
        place = found[page].find(text)
        if place < 0:
            alike = "".join(r"[-+\w.]+" if new else re.escape(old) for old, new in pieces)
            has = re.search(alike, found[page])
            errors.append(f"{page}: the lines say {text!r}; the page {has[0] if has else None!r}")
            covered[page] += [has.span()] if has else []
        for piece, computed in pieces if place >= 0 else ():
            if computed:
                covered[page].append((place, place + len(piece)))
            place += len(piece)
    for page in COVERED:
        for number in NUMBER.finditer(found[page]):
            if not any(start <= number.start() < end for start, end in covered[page]):
                around = found[page][max(number.start() - 40, 0) : number.end() + 20]
                errors.append(f"{page}: no sentence of numbers.toml has {number[0]} in {around!r}")
    return errors


def _pieces(sentence: Mapping[str, Any], numbers: Numbers) -> Iterator[Piece]:
    """Yields the pieces of a sentence: its own text, and the values of its placeholders."""
    values = {
        name: numbers.value(query) for name, query in sentence.items() if isinstance(query, list)
    }
    formatter = Formatter()
    for text, name, spec, _ in formatter.parse(_plain(sentence["text"])):
        yield text, False
        if name is not None:
            value, _ = formatter.get_field(name, (), values)
            yield formatter.format_field(value, spec or ""), True


def _plain(text: str) -> str:
    """Returns a page without blocks of code and comments, and with single spaces."""
    return " ".join(re.sub(r"(?s)```.*?```|<!--.*?-->", " ", text).split())


def main() -> None:
    listed = tomllib.loads(NUMBERS.read_text("utf-8"))
    names = dict.fromkeys([*COVERED, *(sentence["page"] for sentence in listed["sentence"])])
    pages = {name: (ROOT / name).read_text("utf-8") for name in names}
    if errors := faults(listed, pages, Numbers(find_results(ROOT / "results" / "lines"))):
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    main()
