"""Writes the tables and figures of the GSA paper, and more, into a folder, with a page that shows
them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onepass.base.errors import InputError, RunError, UnknownNameError
from onepass.base.fileio import write_text
from onepass.data.catalogue import CATALOGUE
from onepass.gsa_paper import figures as paper_figures
from onepass.gsa_paper import tables as paper
from onepass.learning.registry import COMMON
from onepass.report import figures, layout, rows
from onepass.report.table import FORMATS, Table
from onepass.runs.result import Result
from onepass.runs.variant import shared

SUFFIXES = {"markdown": ".md", "latex": ".tex", "csv": ".csv"}
# Returns tables of the results; True asks for tables for programs.
MakeTables = Callable[[Sequence[Result], bool], list[Table]]
# Writes files at a path, which has no suffix yet, and returns the markdown for the page.
WriteFiles = Callable[[Sequence[Result], Path], str]


@dataclass(frozen=True)
class Section:
    """A table or figure of the page: the name of its files, its title, the experiment whose runs it
    needs, and the function that writes its files."""

    name: str
    title: str
    experiment: str
    write: WriteFiles


def write_page(runs: Mapping[str, Sequence[Result]], folder: Path, heading: str) -> Path:
    """Writes the files of all sections and the page README.md, and returns the path of the page.

    `runs` holds the results of each experiment. A section that cannot be made of them says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = [heading]
    for section in SECTIONS:
        try:
            if not runs[section.experiment]:
                raise InputError("none of its runs has finished")
            text = section.write(runs[section.experiment], folder / section.name)
        except (InputError, RunError, UnknownNameError) as problem:
            text = f"Not made: {problem}.\n"
        texts.append(f"## {section.title}\n\n{text}")
    page = folder / "README.md"
    write_text(page, "\n".join(texts))
    return page


# ---- figures


def _paper_figure(results: Sequence[Result], path: Path) -> str:
    picture = path.with_suffix(".png")
    findings = paper_figures.draw_paper_figure(path.name, results, picture)
    return f"![{path.name}]({picture.name})\n\n{findings}"


def _accuracy(results: Sequence[Result], path: Path) -> str:
    picture = path.with_suffix(".png")
    figures.draw_accuracy(results, picture)
    return f"![{path.name}]({picture.name})\n"


# ---- tables


def _as_files(make: MakeTables) -> WriteFiles:
    """Returns a function that writes the tables as .md, .tex and .csv files and returns their
    markdown."""

    def write(results: Sequence[Result], path: Path) -> str:
        texts = {
            name: "\n".join(FORMATS[name](table) for table in make(results, name == "csv"))
            for name in SUFFIXES
        }
        for name, text in texts.items():
            write_text(path.with_suffix(SUFFIXES[name]), text)
        return texts["markdown"]

    return write


def _paper_table(name: str, *columns: str) -> MakeTables:
    """Returns a function that makes one of the paper's tables: our values beside the published
    ones. On a dataset outside the catalogue, such as the digits, it makes a table of ours with
    `columns`."""

    def make(results: Sequence[Result], numeric: bool) -> list[Table]:
        dataset = results[0].dataset
        if dataset not in CATALOGUE:
            return _results_table(results, numeric, columns)
        if numeric:
            return [paper.long_table(name, results, datasets=[dataset])]
        return paper.paper_tables(name, results, datasets=[dataset])

    return make


def _results_table(
    results: Sequence[Result], numeric: bool, columns: Sequence[str], against: Sequence[str] = ()
) -> list[Table]:
    """Returns one table of the results, with these columns, or with all of them for programs."""
    shown = () if numeric else columns
    return [
        layout.make_table(rows.summarise(results), against=against, numeric=numeric, columns=shown)
    ]


def _ablations(results: Sequence[Result], numeric: bool) -> list[Table]:
    """Returns the table of ablations, tested against gsa without any ablation.

    The variant of that row consists of the choices that every row shares.
    """
    variants = [row.variant for row in rows.summarise(results)]
    full = shared(variants) if len(variants) > 1 else variants[0]
    columns = ("variant", "accuracy", "difference", "p (t-test)", "any-time", "n")
    return _results_table(results, numeric, columns, against=[f"gsa {full or COMMON}"])


def _streams(results: Sequence[Result], numeric: bool) -> list[Table]:
    columns = () if numeric else ("accuracy",)
    return [
        layout.make_table(rows.summarise(results), numeric=numeric, columns=columns, pivot="stream")
    ]


def _times(results: Sequence[Result], numeric: bool) -> list[Table]:
    return _results_table(
        results, numeric, ("method", "variant", "seconds", "steps/s", "passes/sample", "n")
    )


METHOD = ("method", "variant", "memory")
SECTIONS = (
    Section(
        "table1",
        "Table 1: accuracy",
        "table1",
        _as_files(_paper_table("table1", *METHOD, "accuracy", "any-time", "n")),
    ),
    Section(
        "table2",
        "Table 2: forgetting",
        "table1",
        _as_files(_paper_table("table2", *METHOD, "forgetting", "n")),
    ),
    Section("accuracy", "Accuracy over time", "table1", _accuracy),
    Section("times", "Training times", "table1", _as_files(_times)),
    Section("table3", "Table 3, and more: parts of GSA", "ablations", _as_files(_ablations)),
    Section("fig1", "Figure 1: old tasks are pushed down", "fig1", _paper_figure),
    Section("loss-curves", "Losses of stream and replay in task 2", "loss-curves", _paper_figure),
    Section("fig3", "Figure 3: classes are not balanced", "fig3", _paper_figure),
    Section("fig7", "Figure 7: what the GSA-CE loss does about it", "fig7", _paper_figure),
    Section("proposition1", "Proposition 1", "fig7", _paper_figure),
    Section("streams", "Long-tail and blurry streams", "streams", _as_files(_streams)),
)
