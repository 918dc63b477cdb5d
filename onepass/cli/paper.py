"""onepass paper"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onepass.base import devices
from onepass.base.errors import InputError
from onepass.cli import options as shared
from onepass.cli.app import app, one_of, say
from onepass.cli.sweep import Tally, complete, known
from onepass.executors import RunOptions
from onepass.gsa_paper import experiments
from onepass.report.html import page as webpage
from onepass.runs import status
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.sweeps import runner
from onepass.sweeps.durations import Durations
from onepass.sweeps.sweep_file import PlannedRun, without_repeats

QUICK = "digits"
HEADING = """# Tables and figures of the GSA paper, on {dataset}

Made by `{command}`: {memory} samples kept, {seeds}. `runs/` holds the runs, which are those of the
files in `experiments/` on this dataset; `report.html` shows each, and how to repeat it. Every table
lies here as `.md`, `.tex` and `.csv`.
"""


@app.command(
    name="paper",
    epilog="""\b
Examples:
  onepass paper --quick --out paper/                  on the digits, in minutes
  onepass paper --dataset mnist --out paper-mnist/    under an hour on a CPU
  onepass paper --dataset cifar100 --seeds 3 --out paper-cifar100/    hours on a GPU

The runs are those of the files in experiments/, on this dataset. The same command goes on where it
was stopped.""",
)
def paper_(
    out: Annotated[Path, typer.Option(help="Where everything goes.")],
    dataset: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(experiments.MEMORY)}.",
            autocompletion=shared.words(*experiments.MEMORY),
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"A small version of everything, on {QUICK}.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Of each run.")] = 1,
    ocm: Annotated[
        bool, typer.Option("--ocm", help="With OCM, which takes as long as all others together.")
    ] = False,
    jobs: shared.Jobs = "auto",
    device: shared.Device = Job.device,
    data_root: shared.DataRoot = None,
) -> None:
    """Make every table and figure of the GSA paper, and a report."""
    if quick == (dataset is not None):
        raise InputError("give either --quick or --dataset")
    name = one_of("--dataset", dataset or QUICK, tuple(experiments.MEMORY))
    planned = experiments.runs(
        name,
        seeds=seeds,
        costly=ocm,
        device=str(devices.resolve(device)),
        data_root=str(data_root) if data_root else None,
    )
    folder, tally = out / "runs", Tally(None, as_json=False)
    every = without_repeats([one for some in planned.values() for one in some])
    entries = runner.survey(known(every, all_data=False), folder, [])
    durations = Durations([one.result for one in entries if one.result])
    complete(entries, RunOptions(folder, True), durations, tally, jobs=jobs, where=f"; in {folder}")
    results = {of: _finished(some, folder) for of, some in planned.items()}
    _write(results, out, _heading(name, planned, seeds, quick=quick, ocm=ocm))
    if tally.failed:
        raise typer.Exit(1)


def _finished(planned: list[PlannedRun], folder: Path) -> list[Result]:
    found = [status.finished(RunFolder.of(one.job, folder), one.job) for one in planned]
    return [one for one in found if one is not None]


def _heading(
    dataset: str, planned: dict[str, list[PlannedRun]], seeds: int, *, quick: bool, ocm: bool
) -> str:
    options = ["--quick"] if quick else ["--dataset", dataset]
    options += ["--seeds", str(seeds)] if seeds > 1 else []
    options += ["--ocm"] if ocm else []
    return HEADING.format(
        dataset=dataset,
        memory=_memories(planned, experiments.MEMORY[dataset]),
        seeds="one seed" if seeds == 1 else f"{seeds} seeds",
        command=" ".join(["onepass paper", *options]),
    )


def _memories(planned: dict[str, list[PlannedRun]], usual: int) -> str:
    """How many samples are kept, and where it is another number."""
    others = {of: one.job.memory for of, some in planned.items() for one in some}
    told = [f"{memory} in {of}" for of, memory in others.items() if memory != usual]
    return f"{usual} ({', '.join(told)})" if told else str(usual)


def _write(results: dict[str, list[Result]], out: Path, heading: str) -> None:
    from onepass.gsa_paper import page as book  # with all of matplotlib

    page = book.bind(results, out, heading)
    webpage.report([out / "runs"], out / "report.html")
    say(f"{page} and {out / 'report.html'}")
