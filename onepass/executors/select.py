"""Which executor, and how many runs at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from onepass.base import devices
from onepass.executors.base import Executor
from onepass.executors.processes.pool import Processes
from onepass.executors.serial import Here
from onepass.runs.spec import Job

RUNS_ON_A_GPU = 8


def choose(at_once: int) -> Executor:
    return Here() if at_once == 1 else Processes(at_once)


def fitting(wanted: int | None, jobs: Sequence[Job]) -> int:
    """How many jobs to run at once: as many as wanted, or as are fast, but never more than there
    are cores for their threads."""
    first = jobs[0]
    cores = max(1, devices.cores() // first.threads)
    gpus = 1 if first.device != first.device_kind else max(1, torch.cuda.device_count())
    on_gpus = RUNS_ON_A_GPU * gpus
    useful = on_gpus if first.device_kind == "cuda" else cores
    return min(wanted or useful, cores, len(jobs))
