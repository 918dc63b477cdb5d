"""Chooses the executor, and how many runs it has at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from onepass.base import devices
from onepass.base.errors import InputError
from onepass.base.settings import expect_type
from onepass.executors.base import Executor
from onepass.executors.processes.pool import Processes
from onepass.executors.serial import Serial
from onepass.runs.spec import Job

RUNS_ON_A_GPU = 8
AtOnce = int | Literal["auto"]  # auto: as many as speed the whole up


def choose_executor(
    jobs: Sequence[Job], at_once: AtOnce = 1, *, isolated: bool = False
) -> Executor:
    """Returns an executor for these jobs that has `at_once` runs at a time. `isolated`: runs are in
    worker processes even one at a time, so that a killed run does not stop the others."""
    expect_type("jobs", at_once, AtOnce)
    if at_once != "auto" and at_once < 1:
        raise InputError(f"jobs must be at least 1 at a time, not {at_once}")
    count = runs_at_once(at_once, jobs)
    return Processes(count) if isolated or count > 1 else Serial()


def runs_at_once(wanted: AtOnce, jobs: Sequence[Job]) -> int:
    """Returns how many jobs to run at a time: as many as wanted, but no more than the cores have
    threads for. `auto` means a run per core's worth of threads, or `RUNS_ON_A_GPU` per GPU."""
    first = jobs[0]
    cores = max(1, devices.usable_cores() // first.threads)
    gpus = 1 if first.device != first.device_kind else max(1, torch.cuda.device_count())
    on_gpus = RUNS_ON_A_GPU * gpus
    useful = on_gpus if first.device_kind == "cuda" else cores
    return min(useful if wanted == "auto" else wanted, cores, len(jobs))
