"""`onepass.paper`: makes the runs for every table and figure of the GSA paper, and draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.base import devices
from onepass.base.errors import InputError, UnknownNameError
from onepass.base.settings import expect_type
from onepass.executors import RunOptions
from onepass.gsa_paper import experiments
from onepass.sweeps.run import SweepListener, SweptRun, complete_runs
from onepass.sweeps.sweep_file import PlannedRun

if TYPE_CHECKING:
    from onepass.executors import AtOnce
    from onepass.runs.result import Result

QUICK = "digits"
HEADING = """# Tables and figures of the GSA paper, on {dataset}

Made by `{command}`: {memory} stored samples, {seeds}. `runs/` holds the runs: those of the files in
`experiments/`, on this dataset. `report.html` shows each run and how to repeat it. Every table lies
here as `.md`, `.tex` and `.csv`.
"""


@dataclass(frozen=True)
class PaperFiles:
    """The paths of the page with all tables and figures and of the HTML report, and every run with
    its state."""

    page: Path
    report: Path
    runs: list[SweptRun]


def paper(
    out: Path | str,
    *,
    dataset: str | None = None,
    quick: bool = False,
    seeds: int = 1,
    ocm: bool = False,
    jobs: AtOnce = "auto",
    device: str = "auto",
    data_root: Path | str | None = None,
    listener: SweepListener | None = None,
) -> PaperFiles:
    """Makes the runs for every table and figure of the GSA paper, writes the tables and figures
    with a page and a report, as `onepass paper` does, and returns their paths.

    Runs that have finished in the folder are not repeated. If no run of a section has finished, the
    page says so there. Runs use processes of their own, so a script must call this function below
    `if __name__ == "__main__":`.

    Parameters
    ----------
    out:
        The folder for everything.
    dataset:
        `digits`, `mnist`, `cifar10`, `cifar100` or `tiny-imagenet`.
    quick:
        Instead of a dataset: a small version of everything on the digits.
    seeds:
        The number of seeds, from 0. A configuration with fewer seeds in its sweep file has fewer.
    ocm:
        Includes `ocm` and `ocm-gsa`, which each take as long as all other methods together.
    jobs:
        The number of runs at a time; `auto` chooses it.
    device, data_root:
        The device to compute on, and the folder of the datasets.
    listener:
        A `SweepListener` that follows the runs.
    """
    if quick == (dataset is not None):
        raise InputError("give either --quick or --dataset")
    name = dataset or QUICK
    if name not in experiments.MEMORY_SIZES:
        raise UnknownNameError("value of --dataset", name, experiments.MEMORY_SIZES)
    expect_type("seeds", seeds, int)
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")
    from onepass.gsa_paper import page  # with all of matplotlib
    from onepass.report.html.page import write_report

    planned = experiments.plan_runs(
        name,
        seeds=seeds,
        costly=ocm,
        device=str(devices.resolve_device(device)),
        data_root=str(data_root) if data_root else None,
    )
    folder = Path(out)
    every = [run for of_experiment in planned.values() for run in of_experiment]
    options = RunOptions(folder / "runs", resume=True)
    runs = complete_runs(every, options, jobs=jobs, listener=listener)
    results = {run.name: run.result for run in runs if run.result}
    written = page.write_page(
        {name: _results_of(of_name, results) for name, of_name in planned.items()},
        folder,
        _heading(name, planned, seeds, quick=quick, ocm=ocm),
    )
    report = folder / "report.html"
    write_report([folder / "runs"], report)
    return PaperFiles(written, report, runs)


def _results_of(planned: Sequence[PlannedRun], results: Mapping[str, Result]) -> list[Result]:
    """Returns the results of the planned runs that have finished."""
    names = [run.job.folder_name for run in planned]
    return [results[name] for name in names if name in results]


def _heading(
    dataset: str, planned: dict[str, list[PlannedRun]], seeds: int, *, quick: bool, ocm: bool
) -> str:
    options = ["--quick"] if quick else ["--dataset", dataset]
    options += ["--seeds", str(seeds)] if seeds > 1 else []
    options += ["--ocm"] if ocm else []
    return HEADING.format(
        dataset=dataset,
        memory=_memory_sizes(planned, experiments.MEMORY_SIZES[dataset]),
        seeds=_seed_counts(planned),
        command=" ".join(["onepass paper", *options]),
    )


def _seed_counts(planned: dict[str, list[PlannedRun]]) -> str:
    """Returns the largest number of seeds as text, with the experiments whose files have fewer."""
    counts = {name: len({run.job.seed for run in of_name}) for name, of_name in planned.items()}
    most = max(counts.values())
    fewer = [f"{count} in {name}" for name, count in counts.items() if count < most]
    text = "one seed" if most == 1 else f"{most} seeds"
    return f"{text} ({', '.join(fewer)})" if fewer else text


def _memory_sizes(planned: dict[str, list[PlannedRun]], usual: int) -> str:
    """Returns the usual size of the memory as text, with the experiments that have another one."""
    sizes = {name: run.job.memory for name, of_name in planned.items() for run in of_name}
    others = [f"{size} in {name}" for name, size in sizes.items() if size != usual]
    return f"{usual} ({', '.join(others)})" if others else str(usual)
