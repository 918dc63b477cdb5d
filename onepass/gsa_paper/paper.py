"""`onepass.paper`: every table and figure of the GSA paper, from runs that are made for it."""

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

Made by `{command}`: {memory} samples kept, {seeds}. `runs/` holds the runs, which are those of the
files in `experiments/` on this dataset; `report.html` shows each, and how to repeat it. Every table
lies here as `.md`, `.tex` and `.csv`.
"""


@dataclass(frozen=True)
class PaperFiles:
    """The page with all tables and figures, the report on the runs, and what became of these."""

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
    """Makes every table and figure of the GSA paper, and a report, as `onepass paper` does.

    What is finished in the folder already is not run again. What cannot be made, since its runs
    have failed, is said on the page. Runs are in processes of their own: a script that calls this
    must do so below `if __name__ == "__main__":`.

    Parameters
    ----------
    out:
        Where everything goes.
    dataset:
        `digits`, `mnist`, `cifar10`, `cifar100` or `tiny-imagenet`; or else, with `quick`, a small
        version of everything on the digits.
    seeds:
        How many there are of each run.
    ocm:
        With OCM, which takes as long as all others together.
    jobs:
        How many runs at a time; `auto`: as many as pay.
    device, data_root:
        Where to compute, and where datasets lie.
    listener:
        Is told how the runs go on.
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
    every = [run for some in planned.values() for run in some]
    options = RunOptions(folder / "runs", resume=True)
    runs = complete_runs(every, options, jobs=jobs, listener=listener)
    results = {run.name: run.result for run in runs if run.result}
    written = page.write_page(
        {of: _results_of(some, results) for of, some in planned.items()},
        folder,
        _heading(name, planned, seeds, quick=quick, ocm=ocm),
    )
    report = folder / "report.html"
    write_report([folder / "runs"], report)
    return PaperFiles(written, report, runs)


def _results_of(planned: Sequence[PlannedRun], results: Mapping[str, Result]) -> list[Result]:
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
        seeds="one seed" if seeds == 1 else f"{seeds} seeds",
        command=" ".join(["onepass paper", *options]),
    )


def _memory_sizes(planned: dict[str, list[PlannedRun]], usual: int) -> str:
    """Returns how many samples are kept, and where it is another number."""
    others = {of: run.job.memory for of, some in planned.items() for run in some}
    told = [f"{memory} in {of}" for of, memory in others.items() if memory != usual]
    return f"{usual} ({', '.join(told)})" if told else str(usual)
