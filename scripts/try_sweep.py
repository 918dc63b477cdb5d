"""Tries every run of a sweep on the CPU in a shrunken form, before a GPU's minutes are spent on it.

    python scripts/try_sweep.py experiments/tuned.toml --data-root data/ --fraction 0.02

Each dataset and memory is cut to a fraction, networks for images of objects become a slim ResNet18,
and only the first seed of each run is tried. It prints a line for each run, with its accuracy or
its error, and exits with status 1 if one failed. The accuracies mean nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import onepass
from onepass.base.errors import OnepassError
from onepass.data.catalogue import CATALOGUE
from onepass.runs.execute import run_job
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job
from onepass.sweeps.sweep_file import read_sweep_file

SLIM = "resnet18-slim"
FEWEST = 4  # samples that each class keeps


def cut(dataset: str, fraction: float, root: str | None, folder: Path) -> Path:
    """Writes a fraction of each class of a dataset to a file that `--dataset` takes, and returns
    its path. The classes keep their order."""
    file = folder / f"{dataset}.npz"
    if not file.exists():
        data = onepass.load(dataset, root=root)
        parts = {}
        for name, x, y in (
            ("train", data.train_x, data.train_y),
            ("test", data.test_x, data.test_y),
        ):
            labels = np.asarray(y)
            groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
            kept = np.concatenate([g[: max(FEWEST, int(fraction * len(g)))] for g in groups])
            parts |= {f"{name}_x": np.asarray(x)[kept], f"{name}_y": labels[kept]}
        np.savez(file, **parts)
    return file


def shrunken(job: Job, fraction: float, folder: Path) -> Job:
    """Returns a job of the same method and settings on a fraction of its data and memory."""
    facts = CATALOGUE[job.dataset]
    large = job.dataset not in ("mnist", "digits")
    return replace(
        job,
        dataset=str(cut(job.dataset, fraction, job.data_root, folder)),
        tasks=job.tasks or facts.tasks,
        memory=max(20, int(fraction * job.memory)),
        every=None,
        settings={**job.settings, "precision": "fp32", **({"net": SLIM} if large else {})},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--data-root")
    parser.add_argument("--fraction", type=float, default=0.1)
    chosen = parser.parse_args()
    planned = read_sweep_file(chosen.file, device="cpu", data_root=chosen.data_root)
    jobs = list({run.job.folder_name: run.job for run in planned if run.job.seed == 0}.values())
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder, resources = Path(name), RunResources()
        for number, job in enumerate(jobs, start=1):
            small = shrunken(job, chosen.fraction, folder)
            try:
                found = f"{run_job(small, folder / 'runs', resources=resources).accuracy:.1f}"
            except OnepassError as error:
                found, failed = f"error: {error}", failed + 1
            choices = " ".join(f"{key}={value}" for key, value in job.settings.items())
            what = f"{job.method} {job.preset} {job.dataset} {job.memory} {choices}"
            print(f"{number}/{len(jobs)} {what}: {found}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
