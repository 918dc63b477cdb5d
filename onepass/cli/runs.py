"""onepass runs list, show, diff, export"""

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
from onepass.cli.app import app, messages, say
from onepass.cli.options import Paths, Where
from onepass.runs import lines
from onepass.runs.details import details, differences, outcomes
from onepass.runs.find import FoundRun, find_run, find_runs
from onepass.runs.query import expect_known_keys, find_results, matching_runs

runs_app = typer.Typer(
    help="Runs in folders and as lines: list, show, compare, export.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(runs_app, name="runs")
COLUMNS = "method,variant,dataset,memory,seed,accuracy,any-time,seconds,state,where"
TENTHS = ("accuracy", "any-time", "anytime_accuracy", "forgetting", "seconds")
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")]


@runs_app.command(
    name="list",
    epilog="""\b
Examples:
  onepass runs list runs/
  onepass runs list runs/ results/lines/cifar100.jsonl --where method=gsa --where 'accuracy>30'
  onepass runs list runs/ --where state=broken
  onepass runs list runs/ --sort -accuracy --columns method,lr,head,seed,accuracy""",
)
def list_(
    paths: Paths,
    where: Where = None,
    sort: Annotated[
        str | None, typer.Option(metavar="KEY", help="By this; -KEY: the largest first.")
    ] = None,
    columns: Annotated[str, typer.Option(metavar="KEY,…", help="What to show.")] = COLUMNS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per run.")] = False,
) -> None:
    """Show every run: finished, broken (no result yet) or damaged."""
    keys = [key.strip() for key in columns.split(",")]
    with _nothing_is_garbage():
        found = [run for run in find_runs(*paths) if not run.foreign or _is_in(run, paths)]
        if columns != COLUMNS:
            expect_known_keys(found, keys)
        shown = matching_runs(found, where or [], sort)
        if as_json:
            typer.echo("".join(f"{_as_json(run, keys)}\n" for run in shown), nl=False)
        else:
            terminal_table.show(keys, [[_cell(run, key) for key in keys] for run in shown])
    if not as_json:
        counts = Counter(run.state for run in shown)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        messages.print(f"{len(shown)} of {len(found)} runs: {told}" if told else "no run matches")


def _is_in(run: FoundRun, paths: Sequence[Path]) -> bool:
    """Returns whether a line lies in a file that was named: then one that is no run is shown as
    damaged, and not passed over."""
    return (lines.file_of_line(run.where) or "") in map(str, paths)


@contextmanager
def _nothing_is_garbage() -> Iterator[None]:
    """All that is read is kept: to search it for garbage takes half as long again."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _as_json(run: FoundRun, keys: Sequence[str]) -> str:
    problem = {"problem": run.problem} if run.problem else {}
    try:
        return json.dumps({key: run.get(key) for key in keys} | problem, allow_nan=False)
    except (ValueError, RecursionError):
        raise RunError(f"{run.where} is damaged: it holds what JSON does not have") from None


def _cell(run: FoundRun, key: str) -> str:
    value = run.get(key)
    if key == "state":
        if run.state == "broken":
            return f"broken at {run.get('steps_done')} of {_shown(run.get('steps'))}"
        return f"damaged: {run.problem}" if run.problem else run.state
    if key in TENTHS and isinstance(value, float):
        return f"{value:.1f}"
    return _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    try:
        return "-" if value is None else shortened(json.dumps(value))
    except RecursionError:
        return "..."


@runs_app.command(
    epilog="""\b
Examples:
  onepass runs show runs/gsa-digits-m100-s0
  onepass runs show results/lines/cifar100.jsonl:3
  onepass runs show 5f3a runs/ results/lines/cifar100.jsonl"""
)
def show(
    run: Annotated[
        str, typer.Argument(help="A folder, FILE.jsonl:NUMBER, or an identity's first letters.")
    ],
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Where to look for the identity.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is known of one run."""
    found = find_run(run, paths or ())
    known = details(found)
    if as_json:
        typer.echo(json.dumps({"where": found.where, "state": found.state, **known}))
        return
    say(f"{found.where}  {_cell(found, 'state')}")
    matrix = known.get("accuracy", {}).pop("accuracy_matrix", [])
    for name, section in known.items():
        typer.echo(f"\n{name}")
        terminal_table.show([], [[f"  {key}", _shown(one)] for key, one in section.items()])
        if name == "accuracy" and matrix:
            _show_matrix(matrix)


def _show_matrix(matrix: Sequence[Sequence[float | None]]) -> None:
    typer.echo("  on each task, after each task")
    rows = [["" if one is None else f"{one:.1f}" for one in row] for row in matrix]
    header = ["  after", *(str(task) for task, _ in enumerate(rows, start=1))]
    terminal_table.show(header, [[f"  {task}", *row] for task, row in enumerate(rows, start=1)])


@runs_app.command(
    epilog="""\b
Examples:
  onepass runs diff runs/gsa-digits-m100-s0 runs/gsa-digits-m100-s1
  onepass runs diff results/lines/cifar100.jsonl:3 runs/gsa-cifar100-m1000-s0 --json"""
)
def diff(
    one: Annotated[str, typer.Argument(help="A folder, or FILE.jsonl:NUMBER.")],
    other: Annotated[str, typer.Argument(help="Likewise.")],
    as_json: AsJson = False,
) -> None:
    """Show what was asked otherwise of two runs, and what came of each."""
    a, b = find_run(one), find_run(other)
    asked, came = differences(a, b), outcomes(a, b)
    if as_json:
        typer.echo(json.dumps({"differences": asked, "results": came}))
        return
    rows = [[name, *map(_shown, pair)] for name, pair in {**asked, **came}.items()]
    terminal_table.show(["", a.where, b.where], rows)
    if not asked:
        messages.print("nothing was asked otherwise")


@runs_app.command(
    epilog="""\b
Examples:
  onepass runs export runs/ -o results.csv
  onepass runs export runs/ results/lines/cifar100.jsonl -o results.parquet"""
)
def export(
    paths: Paths,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .csv or .parquet file.")],
) -> None:
    """Write all results into one file, a row for each run."""
    from onepass.report.export import export_results

    count = export_results(find_results(*paths), output)
    say(f"{output}: {count} runs")
