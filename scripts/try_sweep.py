"""Tries every run of a sweep on the CPU in a shrunken form, before a GPU's minutes are spent on it.

    python scripts/try_sweep.py experiments/tuned.toml

Random images stand for its data, so that no data are needed: three tasks of two classes. Images of
objects have a quarter of the dataset's height and width, and a slim ResNet18 learns them. The
memory holds 20 samples. Runs that are alike once they are shrunken, as all seeds are, are tried
once. A line for each says that it ended, or its error; the exit status is 1 if one failed.
Accuracies would mean nothing, so none is printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from onepass.base.errors import OnepassError
from onepass.data.catalogue import CATALOGUE
from onepass.runs.execute import run_job
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job
from onepass.sweeps.sweep_file import read_sweep_file

SLIM = "resnet18-slim"
TASKS, CLASSES, MEMORY = 3, 6, 20
DIGITS = ("digits", "mnist")  # these keep their small network


def stand_in(dataset: str, samples: int, folder: Path) -> Path:
    """Writes random images to a file that `--dataset` takes, one file for all datasets of the same
    shape, and returns its path."""
    channels, height, width = CATALOGUE[dataset].shape
    cut = 1 if dataset in DIGITS else 4
    shape = (channels, height // cut, width // cut)
    file = folder / f"{'x'.join(map(str, shape))}.npz"
    if not file.exists():
        draws = np.random.default_rng(0)
        parts = {}
        for name, count in (("train", samples), ("test", 1)):
            y = np.repeat(np.arange(CLASSES), count)
            parts[f"{name}_x"] = draws.integers(0, 256, (len(y), *shape), dtype=np.uint8)
            parts[f"{name}_y"] = y
        np.savez(file, **parts)
    return file


def shrunken(job: Job, samples: int, folder: Path) -> Job:
    """Returns a job of the same method and settings on a stand-in for its data."""
    small = {"precision": "fp32"} | ({} if job.dataset in DIGITS else {"net": SLIM})
    return replace(
        job,
        dataset=str(stand_in(job.dataset, samples, folder)),
        tasks=TASKS,
        mirror_is_same_class=CATALOGUE[job.dataset].mirror_is_same_class,
        memory=MEMORY,
        seed=0,
        every=None,
        settings=job.settings | small,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--samples", type=int, default=20, help="of each class (default: 20)")
    chosen = parser.parse_args()
    planned = read_sweep_file(chosen.file, device="cpu")
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs: list[Job] = []
        for run in planned:
            job = shrunken(run.job, chosen.samples, folder)
            if job not in jobs:
                jobs.append(job)
        for number, job in enumerate(jobs, start=1):
            runs = folder / str(number)
            try:
                run_job(job, runs, checkpoint=None, resources=RunResources())
                ending = "ended"
            except OnepassError as error:
                ending, failed = f"error: {error}", failed + 1
            settings = " ".join(f"{key}={value}" for key, value in job.settings.items())
            what = f"{job.method} {job.preset} {Path(job.dataset).stem} {settings}"
            print(f"{number}/{len(jobs)} {what}: {ending}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
