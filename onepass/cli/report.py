"""`onepass report`: an HTML page about runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, get_args

import typer

from onepass.base.text import printable
from onepass.cli import options as shared
from onepass.cli.app import app, messages, print_text
from onepass.report.html.page import write_report
from onepass.runs.find import RunState


@app.command(
    name="report",
    epilog="""\b
Examples:
  onepass report runs/ -o report.html
  onepass report runs/ results/lines/cifar100.jsonl -o report.html
  onepass report results/ -o report.html
  onepass report runs/ -o report.html --where memory=50

The page is one file and needs no network; docs/report.md says what it shows.""",
)
def report_command(
    paths: shared.Paths,
    output: Annotated[Path, typer.Option("-o", "--output", help="The .html file to write.")],
    where: shared.Where = None,
) -> None:
    """Write an HTML page about runs: tables, curves, maps, costs."""
    shown = write_report(paths, output, where or [])
    for file, count in shown["passed_over"].items():
        messages.print(
            printable(f"{file}: {count} lines are left out: they are not results of runs")
        )
    states = Counter(run["state"] for run in shown["runs"])
    counts = [f"{states[state]} {state}" for state in get_args(RunState) if states[state]]
    print_text(f"{output}: {', '.join(counts)} runs")
