"""`onepass runs list`, `show`, `diff` and `export`: single runs, in folders and .jsonl files."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from onepass.base.errors import RunError
from onepass.base.text import shortened
from onepass.cli import terminal_table
from onepass.cli.app import app, messages, print_text
from onepass.cli.options import Paths, Where
from onepass.runs import lines
from onepass.runs.details import details, differences, outcomes
from onepass.runs.find import FoundRun, find_run, find_runs
from onepass.runs.query import expect_known_keys, find_results, matching_runs

runs_app = typer.Typer(
    help="List, show, compare and export runs in folders and files.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(runs_app, name="runs")
COLUMNS = "method,variant,dataset,memory,seed,accuracy,any-time,seconds,state,where"
# values that the table of `runs list` shows with one decimal
TENTHS = (
    "accuracy",
    "any-time",
    "anytime_accuracy",
    "forgetting",
    "learning_accuracy",
    "newest_accuracy",
    "seconds",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")]


@runs_app.command(
    name="list",
    epilog="""\b
Examples:
  onepass runs list runs/
  onepass runs list runs/ results/lines/cifar100.jsonl --where method=gsa --where 'accuracy>30'
  onepass runs list runs/ --where state=broken
  onepass runs list runs/ --sort -accuracy --columns method,lr,head,seed,accuracy""",
)
def list_runs(
    paths: Paths,
    where: Where = None,
    sort: Annotated[
        str | None, typer.Option(metavar="KEY", help="Sort by KEY, or by -KEY, largest first.")
    ] = None,
    columns: Annotated[
        str, typer.Option(metavar="KEY,…", help="The columns of the table, in this order.")
    ] = COLUMNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run.")] = False,
) -> None:
    """Show every run: finished, broken (no result yet) or damaged."""
    keys = [key.strip() for key in columns.split(",")]
    with _garbage_collection_paused():
        found = [
            run for run in find_runs(*paths) if not run.foreign or _is_in_named_file(run, paths)
        ]
        if columns != COLUMNS:
            expect_known_keys(found, keys)
        listed = matching_runs(found, where or [], sort)
        if as_json:
            typer.echo("".join(f"{_as_json(run, keys)}\n" for run in listed), nl=False)
        else:
            terminal_table.print_table(keys, [[_cell(run, key) for key in keys] for run in listed])
    if not as_json:
        counts = Counter(run.state for run in listed)
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        summary = f"{len(listed)} of {len(found)} runs: {states}"
        messages.print(summary if states else "no run matches")


def _is_in_named_file(run: FoundRun, paths: Sequence[Path]) -> bool:
    """Returns whether a run comes from a .jsonl file that the command names.

    A line of such a file that is no run is listed as damaged. In a file that was only found in a
    folder, such a line is skipped, because a folder may hold other .jsonl files.
    """
    return (lines.file_of_line(run.where) or "") in map(str, paths)


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pauses garbage collection, which would add half the time while thousands of runs are read."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _as_json(run: FoundRun, keys: Sequence[str]) -> str:
    """Returns the values of a run as a JSON object, with its `problem` if it is damaged."""
    problem = {"problem": run.problem} if run.problem else {}
    try:
        return json.dumps({key: run.get(key) for key in keys} | problem, allow_nan=False)
    except (ValueError, RecursionError):
        raise RunError(f"{run.where} is damaged: it holds a value that JSON cannot hold") from None


def _cell(run: FoundRun, key: str) -> str:
    """Returns a value of a run as text; the state says how far a broken run came."""
    value = run.get(key)
    if key == "state":
        if run.state == "broken":
            return f"broken at {run.get('steps_done')} of {_format_value(run.get('steps'))}"
        return f"damaged: {run.problem}" if run.problem else run.state
    if key in TENTHS and isinstance(value, float):
        return f"{value:.1f}"
    return _format_value(value)


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    try:
        return "-" if value is None else shortened(json.dumps(value))
    except RecursionError:
        return "..."


@runs_app.command(
    name="show",
    epilog="""\b
Examples:
  onepass runs show runs/gsa-digits-m100-s0
  onepass runs show results/lines/cifar100.jsonl:3
  onepass runs show 5f3a runs/ results/lines/cifar100.jsonl""",
)
def show_run(
    run: Annotated[
        str,
        typer.Argument(
            help="A run folder, FILE.jsonl:NUMBER, or the first letters of a run's identity or "
            "state_sha256."
        ),
    ],
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Folders and files to search for these letters.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show everything that is recorded of one run."""
    found = find_run(run, paths or ())
    known = details(found)
    if as_json:
        typer.echo(json.dumps({"where": found.where, "state": found.state, **known}))
        return
    print_text(f"{found.where}  {_cell(found, 'state')}")
    matrix = known.get("accuracy", {}).pop("accuracy_matrix", [])
    for name, section in known.items():
        typer.echo(f"\n{name}")
        terminal_table.print_table(
            [], [[f"  {key}", _format_value(value)] for key, value in section.items()]
        )
        if name == "accuracy" and matrix:
            _print_matrix(matrix)


def _print_matrix(matrix: Sequence[Sequence[float | None]]) -> None:
    typer.echo("  on each task, after each task")
    rows = [["" if value is None else f"{value:.1f}" for value in row] for row in matrix]
    header = ["  after", *(str(task) for task, _ in enumerate(rows, start=1))]
    terminal_table.print_table(
        header, [[f"  {task}", *row] for task, row in enumerate(rows, start=1)]
    )


@runs_app.command(
    name="diff",
    epilog="""\b
Examples:
  onepass runs diff runs/gsa-digits-m100-s0 runs/gsa-digits-m100-s1
  onepass runs diff results/lines/cifar100.jsonl:3 runs/gsa-cifar100-m1000-s0 --json""",
)
def diff_runs(
    one: Annotated[str, typer.Argument(help="A run folder, or FILE.jsonl:NUMBER.")],
    other: Annotated[str, typer.Argument(help="The run to compare it with.")],
    as_json: AsJson = False,
) -> None:
    """Show how two runs differ, and both results.

    Settings, stream and machine are compared.
    """
    a, b = find_run(one), find_run(other)
    settings, measured = differences(a, b), outcomes(a, b)
    if as_json:
        typer.echo(json.dumps({"differences": settings, "results": measured}))
        return
    rows = [[name, *map(_format_value, pair)] for name, pair in {**settings, **measured}.items()]
    terminal_table.print_table(["", a.where, b.where], rows)
    if not settings:
        messages.print("the two runs have the same settings")


@runs_app.command(
    name="export",
    epilog="""\b
Examples:
  onepass runs export runs/ -o results.csv
  onepass runs export runs/ results/lines/cifar100.jsonl -o results.parquet""",
)
def export_runs(
    paths: Paths,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .csv or .parquet file.")],
) -> None:
    """Write all results into one file, a row for each finished run."""
    from onepass.report.export import export_results

    count = export_results(find_results(*paths), output)
    print_text(f"{output}: {count} runs")
