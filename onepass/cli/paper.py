"""`onepass paper`: reproduces the tables and figures of the GSA paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onepass.cli import options as shared
from onepass.cli.app import app, print_text
from onepass.cli.run import parse_jobs_at_once
from onepass.cli.sweep import SweepDisplay
from onepass.gsa_paper.experiments import MEMORY_SIZES
from onepass.gsa_paper.paper import QUICK, paper
from onepass.runs.spec import Job


@app.command(
    name="paper",
    epilog="""\b
Examples:
  onepass paper --quick --out paper/                  on the digits, in minutes
  onepass paper --dataset mnist --out paper-mnist/    under an hour on a CPU
  onepass paper --dataset cifar100 --seeds 3 --out paper-cifar100/    hours on a GPU

The runs are those of the files in experiments/, on this dataset. If the command is stopped, give it
again: it continues.""",
)
def paper_command(
    out: Annotated[Path, typer.Option(help="Folder for runs, tables, figures and report.")],
    dataset: Annotated[
        str | None,
        typer.Option(
            help=f"Dataset of all runs: {', '.join(MEMORY_SIZES)}; required without --quick.",
            autocompletion=shared.complete_words(*MEMORY_SIZES),
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Run a small version of everything, on {QUICK}.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds of each run.")] = 1,
    ocm: Annotated[
        bool, typer.Option("--ocm", help="Include OCM, which takes as long as all others together.")
    ] = False,
    jobs: shared.Jobs = "auto",
    device: shared.Device = Job.device,
    data_root: shared.DataRoot = None,
) -> None:
    """Make every table and figure of the GSA paper, and a report."""
    with SweepDisplay(f"; in {out / 'runs'}") as shown:
        made = paper(
            out,
            dataset=dataset,
            quick=quick,
            seeds=seeds,
            ocm=ocm,
            jobs=parse_jobs_at_once(jobs),
            device=device,
            data_root=data_root,
            listener=shown,
        )
    print_text(f"{made.page} and {made.report}")
    if any(swept.state == "failed" for swept in made.runs):
        raise typer.Exit(1)
