"""Measures how much RAM or GPU memory is free and how much runs take, so that large runs wait.

A run on the CPU takes RAM, a run on a GPU takes memory of that GPU. In this package, names with
`ram` stand for either.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from onepass.base.ram import free_ram_bytes, read_number
from onepass.data import Dataset
from onepass.executors.processes.gpus import Gpu, query_nvidia_smi
from onepass.learning.closed_form import ClosedForm
from onepass.learning.learner import Learner
from onepass.learning.network_learner import NetworkLearner
from onepass.runs.spec import Job

MIB = 2**20
CONTEXT = 512 * MIB  # an estimate of the GPU memory that CUDA takes per process, besides tensors
PROCESS = 1024 * MIB  # a guess for Python, torch and the activations of a step
SUMS_AND_SOLVE = 6  # a solve was seen to take three to six times the bytes of the sums
SPARE = 0.1  # the fraction of the free memory that stays unused


@dataclass(frozen=True)
class RamUse:
    """The bytes that a worker holds now, and the most it has held during its current run."""

    now: int = 0
    most: int = 0


class RamBudget:
    """Estimates how much RAM or GPU memory runs take, and how much is left for another run.

    Runs that differ only in their seeds are of one kind, and are expected to take equally much.
    `free` returns the free bytes of a GPU, or of RAM; if it returns None, no run waits. `guesses`
    and `seen` hold bytes by kind of run: those guessed, and the most that a finished run has held.
    """

    def __init__(self, free: Callable[[Gpu], int | None] | None = None) -> None:
        self.free = free or free_bytes
        self.guesses: dict[str, int] = {}
        self.seen: dict[str, int] = {}

    def guess(self, job: Job, dataset: Dataset, learner: Learner) -> None:
        """Records a guess, which is used until a run of this kind has finished: a process, the data
        twice, the network with its gradients and the optimiser's two moments, the stored samples
        and the copies of the network; sums six times, because solving copies them."""
        from onepass.learning.memory_contents import copy_bytes, memory_bytes

        data = dataset.train_x.nbytes + dataset.test_x.nbytes
        trained = learner.model.parameters() if isinstance(learner, NetworkLearner) else ()
        network = sum(parameter.nbytes for parameter in trained)
        stored = memory_bytes(learner) + copy_bytes(learner)
        if isinstance(learner, ClosedForm):
            stored *= SUMS_AND_SOLVE
        self.guesses[job.kind] = PROCESS + 2 * data + 4 * network + stored

    def record(self, job: Job, taken: RamUse) -> None:
        """Records the most that a finished run has held."""
        self.seen[job.kind] = max(taken.most, self.seen.get(job.kind, 0))

    def expected(self, job: Job) -> int:
        """Returns the bytes that a job is expected to take: measured in runs of its kind, or else
        guessed."""
        return self.seen.get(job.kind) or self.guesses.get(job.kind, PROCESS)

    def room(self, gpu: Gpu, beside: Iterable[tuple[Job, RamUse]], held: RamUse) -> int | None:
        """Returns the bytes that a new run may take beside others; None if unknown. The growth that
        the others still expect is subtracted. The bytes `held` by the idle worker are added,
        because the new run reuses that worker."""
        free = self.free(gpu)
        if free is None:
            return None
        growth = sum(max(0, self.expected(job) - taken.now) for job, taken in beside)
        return int((1 - SPARE) * free) - growth + held.now


def free_bytes(gpu: Gpu) -> int | None:
    """Returns the free bytes of a GPU, or of RAM if `gpu` is None. Returns None if they cannot be
    read."""
    if gpu is None:
        return free_ram_bytes()
    megabytes = query_nvidia_smi("memory.free", gpu)
    return int(megabytes[0]) * MIB if megabytes and megabytes[0].isdecimal() else None


def count_oom_kills() -> int | None:
    """Returns how many processes the kernel has killed for lack of RAM; None if unknown."""
    return read_number("/proc/vmstat", "oom_kill")


# ---- called in a worker


def reset_ram_peak(device: str) -> None:
    """Frees unused RAM or GPU memory and resets the peak counters, so that the next run of this
    worker is measured without the runs before."""
    gc.collect()
    if device == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # on Linux, a 5 sets VmHWM back to VmRSS
        Path("/proc/self/clear_refs").write_text("5")


def ram_use(device: str) -> RamUse:
    """Returns the bytes that this process holds now, and the most since `reset_ram_peak`."""
    if device == "cuda":
        now, most = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
        return RamUse(now + CONTEXT, most + CONTEXT)
    status = f"/proc/{os.getpid()}/status"
    return RamUse(
        read_number(status, "VmRSS:", 1024) or 0, read_number(status, "VmHWM:", 1024) or 0
    )
