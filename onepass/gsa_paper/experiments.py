"""Plans the runs behind every table and figure of the GSA paper, on one dataset.

The runs come from the sweep files in `experiments/`. If a file has no run on this dataset, the runs
on its first dataset are moved to this one. If a file has several sizes of the memory, the runs with
the dataset's size in `MEMORY_SIZES` are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onepass.runs.spec import Job
from onepass.sweeps import sweep_file
from onepass.sweeps.sweep_file import PlannedRun

# The names of the sweep files. Their order is the priority. A run that two experiments share is
# made as the first of them says, so experiments with probes come first.
EXPERIMENTS = ("fig1", "fig3", "fig7", "loss-curves", "table1", "ablations", "streams")
MEMORY_SIZES = {
    "digits": 100,
    "mnist": 500,
    "cifar10": 500,
    "cifar100": 1000,
    "tiny-imagenet": 4000,
}
COSTLY = ("ocm", "ocm-gsa")  # each takes as long as all other methods together


def plan_runs(
    dataset: str,
    *,
    seeds: int = 1,
    costly: bool = False,
    device: str = "auto",
    data_root: str | None = None,
) -> dict[str, list[PlannedRun]]:
    """Returns the planned runs of each experiment, by its name. Their seeds are below `seeds`.
    Methods in `COSTLY` are left out unless `costly` is set."""
    planned = {}
    for priority, name in enumerate(EXPERIMENTS):
        file = _file(name, dataset)
        entries = sweep_file.read_sweep_file(file, device=device, data_root=data_root)
        jobs = _on_dataset(dataset, [entry.job for entry in entries])
        wanted = [job for job in jobs if job.seed < seeds and (costly or job.method not in COSTLY)]
        planned[name] = sweep_file.without_repeats([PlannedRun(job, priority) for job in wanted])
    return planned


def _file(name: str, dataset: str) -> Path:
    """Returns the experiment's sweep file, preferably the one for this dataset alone.

    The files lie inside the installed package, or beside it in a checkout.
    """
    inside = Path(__file__).parents[1] / "experiments"
    folder = inside if inside.is_dir() else Path(__file__).parents[2] / "experiments"
    own = folder / f"{name}-{dataset}.toml"
    return own if own.exists() else folder / f"{name}.toml"


def _on_dataset(dataset: str, jobs: Sequence[Job]) -> list[Job]:
    """Returns the jobs on this dataset, or those on the first dataset moved to it."""
    if own := [job for job in jobs if job.dataset == dataset]:
        # `or own`: fig1 and fig3 store 1000 samples of TinyImageNet, as the paper's section 4 does
        return [job for job in own if job.memory == MEMORY_SIZES[dataset]] or own
    return [_move(job, dataset) for job in jobs if job.dataset == jobs[0].dataset]


def _move(job: Job, dataset: str) -> Job:
    """Returns the job on another dataset, with that dataset's size of the memory. On small images
    the precision becomes the default, because they gain nothing from bf16."""
    small = dataset in ("digits", "mnist")
    settings = {
        name: value for name, value in job.settings.items() if not (small and name == "precision")
    }
    return replace(job, dataset=dataset, memory=MEMORY_SIZES[dataset], settings=settings)
