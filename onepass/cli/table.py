"""onepass table"""

from __future__ import annotations

from typing import Annotated

import typer

from onepass.base.errors import InputError, UnknownNameError
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import app, one_of, say
from onepass.gsa_paper import published
from onepass.gsa_paper import tables as paper
from onepass.report import layout, rows
from onepass.report.pivot import PIVOTS
from onepass.report.table import FORMATS, Table, plain_cell, plain_notes
from onepass.runs.query import results as read
from onepass.runs.result import Result

TEXT, PUBLISHED = "text", "published"


@app.command(
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
  onepass table results/lines/cifar100.jsonl runs/ more-runs/"""
)
def table(
    paths: shared.Paths,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="text, markdown, latex or csv.",
            autocompletion=shared.words(TEXT, *FORMATS),
        ),
    ] = TEXT,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD",
            help="Paired tests against a method ('METHOD VARIANT': one of several), over shared "
            "seeds; published: the published figures beside ours; repeatable.",
            autocompletion=shared.words(PUBLISHED),
        ),
    ] = None,
    pivot: Annotated[
        str | None,
        typer.Option(
            help="memory, dataset or stream: put them side by side.",
            autocompletion=shared.words(*PIVOTS),
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="table1, table2 or table3 of the GSA paper, ours beside the published.",
            autocompletion=shared.words(*paper.LAYOUTS),
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Only of this one; repeatable.", autocompletion=shared.datasets),
    ] = None,
    where: shared.Where = None,
    per_run: Annotated[bool, typer.Option("--per-run", help="A row for each run.")] = False,
    columns: shared.Columns = None,
) -> None:
    """Show finished runs as a table: mean and deviation over seeds."""
    one_of("--format", format_, (TEXT, *FORMATS))
    beside = [name for name in against or [] if name != PUBLISHED]
    datasets, results = dataset or [], read(*paths, where=where or [])
    if like is not None:
        others = {"--pivot": pivot, "--per-run": per_run, "--columns": columns}
        _refuse_with_like([option for option, given in others.items() if given])
        one_of("--like", like, paper.LAYOUTS)
        made = _like(like, results, datasets, beside, format_)
    else:
        if pivot is not None:
            one_of("--pivot", pivot, PIVOTS)
        if per_run and (pivot or against):
            raise InputError("--per-run has nothing to put side by side or to compare")
        made = [
            layout.make_table(
                rows.summarise(_on(results, datasets), per_run=per_run),
                against=beside,
                published=published.published_beside if PUBLISHED in (against or []) else None,
                numeric=format_ == "csv",
                per_run=per_run,
                columns=terminal_table.names(columns),
                pivot=pivot,
            )
        ]
    for number, one in enumerate(made):
        if number:
            typer.echo()
        _print(one, format_)


def _refuse_with_like(given: list[str]) -> None:
    if given:
        raise InputError(f"--like has the paper's rows and columns; {given[0]} does not go with it")


def _like(
    name: str, results: list[Result], datasets: list[str], beside: list[str], format_: str
) -> list[Table]:
    if len(beside) > 1:
        raise InputError(f"--like is tested against one method, not {len(beside)}")
    if beside and format_ == "csv":
        raise InputError("--like has no tests in csv: each line is of one cell")
    if format_ == "csv":
        return [paper.long_table(name, results, datasets=datasets)]
    return paper.paper_tables(name, results, datasets=datasets, against=next(iter(beside), None))


def _on(results: list[Result], datasets: list[str]) -> list[Result]:
    for name in datasets:
        if all(one.dataset != name for one in results):
            raise UnknownNameError("dataset here", name, {one.dataset for one in results})
    return [one for one in results if not datasets or one.dataset in datasets]


def _print(made: Table, format_: str) -> None:
    if format_ != TEXT:
        typer.echo(FORMATS[format_](made), nl=False)
        return
    for text in filter(None, [made.title, made.above]):
        say(text)
    terminal_table.show(made.names, [[plain_cell(cell) for cell in row] for row in made.body])
    terminal_table.show([], [[note] for note in plain_notes(made)])
