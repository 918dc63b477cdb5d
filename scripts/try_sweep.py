"""Tries every run of a sweep on the CPU in a shrunken form, before a GPU's minutes are spent on it.

    python scripts/try_sweep.py experiments/tuned.toml

Random images stand for its data, so that no data are needed: three tasks of two classes. Images of
objects have a quarter of the dataset's height and width, and a slim ResNet18 learns them. The
memory shrinks to a hundredth, and only one seed is tried. A line for each run says that it ended,
or its error; the exit status is 1 if one failed. Accuracies would mean nothing, so none is printed.
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
TASKS, CLASSES = 3, 6
DIGITS = ("digits", "mnist")  # these keep their small network


def stand_in(dataset: str, samples: int, folder: Path) -> Path:
    """Writes random images for a dataset to a file that `--dataset` takes, and returns its path."""
    file = folder / f"{dataset}.npz"
    if not file.exists():
        draws = np.random.default_rng(0)
        channels, height, width = CATALOGUE[dataset].shape
        cut = 1 if dataset in DIGITS else 4
        shape = (channels, height // cut, width // cut)
        parts = {}
        for name, count in (("train", samples), ("test", 1)):
            y = np.repeat(np.arange(CLASSES), count)
            parts[f"{name}_x"] = draws.integers(0, 256, (len(y), *shape), dtype=np.uint8)
            parts[f"{name}_y"] = y
        np.savez(file, **parts)
    return file


def shrunken(job: Job, samples: int, folder: Path) -> Job:
    """Returns a job of the same method and settings on a stand-in for its data."""
    facts = CATALOGUE[job.dataset]
    small = {"precision": "fp32"} | ({} if job.dataset in DIGITS else {"net": SLIM})
    return replace(
        job,
        dataset=str(stand_in(job.dataset, samples, folder)),
        tasks=TASKS,
        mirror_is_same_class=facts.mirror_is_same_class,
        memory=max(20, job.memory // 100),
        every=None,
        settings=job.settings | small,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--samples", type=int, default=20, help="of each class (default: 20)")
    chosen = parser.parse_args()
    planned = read_sweep_file(chosen.file, device="cpu")
    jobs = list({run.job.folder_name: run.job for run in planned if run.job.seed == 0}.values())
    failed = 0
    for number, job in enumerate(jobs, start=1):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                small = shrunken(job, chosen.samples, folder)
                run_job(small, folder / "runs", checkpoint=None, resources=RunResources())
                ending = "ended"
            except OnepassError as error:
                ending, failed = f"error: {error}", failed + 1
        settings = " ".join(f"{key}={value}" for key, value in job.settings.items())
        what = f"{job.method} {job.preset} {job.dataset} {job.memory} {settings}"
        print(f"{number}/{len(jobs)} {what}: {ending}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
