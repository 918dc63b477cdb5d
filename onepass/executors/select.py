"""Chooses the executor of a list of jobs, and how many it runs at a time."""

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
AtOnce = int | Literal["auto"]  # how many runs at a time; `runs_at_once` explains auto


def choose_executor(
    jobs: Sequence[Job], at_once: AtOnce = 1, *, isolated: bool = False
) -> Executor:
    """Returns an executor that runs at most `at_once` of these jobs at a time. With `isolated`,
    runs are in worker processes even one at a time, so that a killed run does not stop the
    others."""
    expect_type("jobs", at_once, AtOnce)
    if at_once != "auto" and at_once < 1:
        raise InputError(f"jobs, the number of runs at a time, must be at least 1, not {at_once}")
    count = runs_at_once(at_once, jobs)
    return Processes(count) if isolated or count > 1 else Serial()


def runs_at_once(wanted: AtOnce, jobs: Sequence[Job]) -> int:
    """Returns how many jobs to run at a time: as many as wanted, but at most all, and at most as
    many as can have a core for each of their threads. `auto` wants as many as that on the CPU, and
    `RUNS_ON_A_GPU` per GPU on GPUs."""
    first = jobs[0]  # all jobs of a list have the same device and number of threads
    cores = max(1, devices.usable_cores() // first.threads)
    # A device with a number, such as cuda:1, is a single GPU; plain cuda means all.
    gpus = 1 if first.device != first.device_kind else max(1, torch.cuda.device_count())
    on_gpus = RUNS_ON_A_GPU * gpus
    useful = on_gpus if first.device_kind == "cuda" else cores
    return min(useful if wanted == "auto" else wanted, cores, len(jobs))
