"""Which executor, and how many runs at once."""

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
AtOnce = int | Literal["auto"]  # auto: as many as are fast


def choose_executor(
    jobs: Sequence[Job], at_once: AtOnce = 1, *, isolated: bool = False
) -> Executor:
    """Returns what runs these jobs, so many at a time. `isolated`: each run is in a process of its
    own even if they come one after another, so that one that is killed takes no other with it."""
    expect_type("jobs", at_once, AtOnce)
    if at_once != "auto" and at_once < 1:
        raise InputError(f"jobs must be at least 1 at a time, not {at_once}")
    count = runs_at_once(at_once, jobs)
    return Processes(count) if isolated or count > 1 else Serial()


def runs_at_once(wanted: AtOnce, jobs: Sequence[Job]) -> int:
    """Returns how many jobs to run at once: as many as wanted, or as are fast, but never more than
    there are cores for their threads."""
    first = jobs[0]
    cores = max(1, devices.usable_cores() // first.threads)
    gpus = 1 if first.device != first.device_kind else max(1, torch.cuda.device_count())
    on_gpus = RUNS_ON_A_GPU * gpus
    useful = on_gpus if first.device_kind == "cuda" else cores
    return min(useful if wanted == "auto" else wanted, cores, len(jobs))
