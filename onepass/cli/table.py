"""`onepass table`: finished runs as a table."""

from __future__ import annotations

from typing import Annotated

import typer

from onepass.base.errors import InputError, UnknownNameError
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import app, expect_one_of, print_text
from onepass.gsa_paper import published
from onepass.gsa_paper import tables as paper
from onepass.report import layout, rows
from onepass.report.pivot import PIVOTS
from onepass.report.table import FORMATS, Table, plain_cell, plain_notes
from onepass.runs.query import find_results as read
from onepass.runs.result import Result

TEXT, PUBLISHED = "text", "published"


@app.command(
    name="table",
    epilog="""\b
Examples:
  onepass table runs/
  onepass table results/ --dataset cifar100
  onepass table runs/ --where memory=50 --where 'lr<1e-3'
  onepass table runs/ --format latex --pivot memory
  onepass table runs/ --columns method,accuracy,n
  onepass table runs/ --against published --against er
  onepass table runs/ --per-run --format csv
  onepass table results/ --like table1 --format markdown
  onepass table results/lines/cifar100.jsonl runs/ more-runs/""",
)
def table_command(
    paths: shared.Paths,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="text, markdown, latex or csv.",
            autocompletion=shared.complete_words(TEXT, *FORMATS),
        ),
    ] = TEXT,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD",
            help="Compare with a method by paired tests over shared seeds ('METHOD VARIANT' if it "
            "has several rows); published: with the published figures; repeatable.",
            autocompletion=shared.complete_words(PUBLISHED),
        ),
    ] = None,
    pivot: Annotated[
        str | None,
        typer.Option(
            help="memory, dataset or stream: a group of columns for each of its values.",
            autocompletion=shared.complete_words(*PIVOTS),
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="Lay out like table1, table2 or table3 of the GSA paper, published figures "
            "beside ours.",
            autocompletion=shared.complete_words(*paper.LAYOUTS),
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="Only runs on this dataset; repeatable.", autocompletion=shared.complete_datasets
        ),
    ] = None,
    where: shared.Where = None,
    per_run: Annotated[
        bool, typer.Option("--per-run", help="A row for each run, not for each group of seeds.")
    ] = False,
    columns: shared.Columns = None,
) -> None:
    """Show finished runs as a table: mean and deviation over seeds."""
    expect_one_of("--format", format_, (TEXT, *FORMATS))
    beside = [name for name in against or [] if name != PUBLISHED]
    datasets, results = dataset or [], read(*paths, where=where or [])
    if like is not None:
        others = {"--pivot": pivot, "--per-run": per_run, "--columns": columns}
        _refuse_with_like([option for option, given in others.items() if given])
        expect_one_of("--like", like, paper.LAYOUTS)
        made = _paper_tables(like, results, datasets, beside, format_)
    else:
        if pivot is not None:
            expect_one_of("--pivot", pivot, PIVOTS)
        if per_run and (pivot or against):
            raise InputError("--per-run does not go with --pivot or --against")
        summarised = rows.summarise(_results_on(results, datasets), per_run=per_run)
        made = [
            layout.make_table(
                summarised,
                against=beside,
                published=published.published_beside if PUBLISHED in (against or []) else None,
                numeric=format_ == "csv",
                per_run=per_run,
                columns=terminal_table.column_names(columns),
                pivot=pivot,
            )
        ]
    if not like and format_ == TEXT and (line := layout.preset_line(summarised)):
        print_text(line)
    for number, result_table in enumerate(made):
        if number:
            typer.echo()
        _print_table(result_table, format_)


def _refuse_with_like(given: list[str]) -> None:
    if given:
        raise InputError(f"--like fixes rows and columns; {given[0]} does not go with it")


def _paper_tables(
    name: str, results: list[Result], datasets: list[str], beside: list[str], format_: str
) -> list[Table]:
    """Returns the tables of a layout of the paper, or as csv a single long table.

    Raises InputError if `beside`, the methods of `--against`, does not go with the layout.
    """
    if len(beside) > 1:
        raise InputError(f"with --like, --against takes one method, not {len(beside)}")
    if beside and format_ == "csv":
        raise InputError("--like has no paired tests in csv: leave out --against")
    if format_ == "csv":
        return [paper.long_table(name, results, datasets=datasets)]
    return paper.paper_tables(name, results, datasets=datasets, against=next(iter(beside), None))


def _results_on(results: list[Result], datasets: list[str]) -> list[Result]:
    """Returns the results on these datasets, or all if none is named.

    Raises UnknownNameError if a named dataset has no result.
    """
    for name in datasets:
        if all(result.dataset != name for result in results):
            raise UnknownNameError(
                "dataset of these runs", name, {result.dataset for result in results}
            )
    return [result for result in results if not datasets or result.dataset in datasets]


def _print_table(made: Table, format_: str) -> None:
    if format_ != TEXT:
        typer.echo(FORMATS[format_](made), nl=False)
        return
    for text in filter(None, [made.title, made.above]):
        print_text(text)
    terminal_table.print_table(
        made.names, [[plain_cell(cell) for cell in row] for row in made.body]
    )
    terminal_table.print_table([], [[note] for note in plain_notes(made)])
