"""The runs behind every table and figure of the GSA paper, on one dataset.

They are those of the sweep files in `experiments/`: as they stand there if the file has runs on
this dataset (of one size of the memory, if it has several), else those of its first dataset, moved
to this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onepass.runs.spec import Job
from onepass.sweeps import sweep_file
from onepass.sweeps.sweep_file import PlannedRun

# In this order: of runs that two of them share, those that are watched by probes come first.
EXPERIMENTS = ("fig1", "fig3", "fig7", "loss-curves", "table1", "ablations", "streams")
MEMORY_SIZES = {
    "digits": 100,
    "mnist": 500,
    "cifar10": 500,
    "cifar100": 1000,
    "tiny-imagenet": 4000,
}
COSTLY = ("ocm", "ocm-gsa")  # one of them takes as long as all others together


def plan_runs(
    dataset: str,
    *,
    seeds: int = 1,
    costly: bool = False,
    device: str = "auto",
    data_root: str | None = None,
) -> dict[str, list[PlannedRun]]:
    """Those of each experiment: of the first seeds, and with one size of the memory each."""
    found = {}
    for priority, name in enumerate(EXPERIMENTS):
        file = _file(name, dataset)
        planned = sweep_file.read_sweep_file(file, device=device, data_root=data_root)
        jobs = _on_dataset(dataset, [one.job for one in planned])
        wanted = [job for job in jobs if job.seed < seeds and (costly or job.method not in COSTLY)]
        found[name] = sweep_file.without_repeats([PlannedRun(job, priority) for job in wanted])
    return found


def _file(name: str, dataset: str) -> Path:
    """The sweep file of this dataset alone, if there is one. They lie inside of the package where
    it is installed, and beside it in a checkout."""
    inside = Path(__file__).parents[1] / "experiments"
    folder = inside if inside.is_dir() else Path(__file__).parents[2] / "experiments"
    own = folder / f"{name}-{dataset}.toml"
    return own if own.exists() else folder / f"{name}.toml"


def _on_dataset(dataset: str, jobs: Sequence[Job]) -> list[Job]:
    if own := [job for job in jobs if job.dataset == dataset]:
        # section 4 of the paper keeps 1000 of TinyImageNet too, which its tables do not have
        return [job for job in own if job.memory == MEMORY_SIZES[dataset]] or own
    return [_move(job, dataset) for job in jobs if job.dataset == jobs[0].dataset]


def _move(job: Job, dataset: str) -> Job:
    """In full precision on small images, which gain nothing from less, and have no GPU to ask
    for."""
    small = dataset in ("digits", "mnist")
    settings = {
        name: value for name, value in job.settings.items() if not (small and name == "precision")
    }
    return replace(job, dataset=dataset, memory=MEMORY_SIZES[dataset], settings=settings)
