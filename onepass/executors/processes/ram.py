"""How much memory there is and how much runs take, so that one that is too big for now waits."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from onepass.data import Dataset
from onepass.executors.processes.gpus import Gpu, query_nvidia_smi
from onepass.learning.learner import Learner
from onepass.runs.spec import Job

MIB = 2**20
CONTEXT = 512 * MIB  # what CUDA takes for a process on the card, beside its tensors
PROCESS = 1024 * MIB  # a guess at Python, torch and the activations of a step
SPARE = 0.1  # of what is free is left alone


@dataclass(frozen=True)
class RamUse:
    """The bytes that a worker holds now, and the most that it has held during this run."""

    now: int = 0
    most: int = 0


class RamBudget:
    """What runs of each kind are known, or guesses, to take. Runs that differ in nothing but their
    seed are of one kind. `free` is asked for the bytes that a GPU, or this machine, has left; where
    it does not know, nothing waits."""

    def __init__(self, free: Callable[[Gpu], int | None] | None = None) -> None:
        self.free = free or free_ram_bytes
        self.guesses: dict[str, int] = {}
        self.seen: dict[str, int] = {}

    def guess(self, job: Job, dataset: Dataset, learner: Learner) -> None:
        """A first guess, until a run of the kind has ended: the data, and the network with its
        gradients and the optimiser's two moments."""
        from onepass.learning.memory_contents import copy_bytes, memory_bytes

        data = dataset.train_x.nbytes + dataset.test_x.nbytes
        network = sum(parameter.nbytes for parameter in learner.trainer.model.parameters())
        kept = memory_bytes(learner) + copy_bytes(learner)
        self.guesses[_run_kind(job)] = PROCESS + 2 * data + 4 * network + kept

    def record(self, job: Job, taken: RamUse) -> None:
        kind = _run_kind(job)
        self.seen[kind] = max(taken.most, self.seen.get(kind, 0))

    def expected(self, job: Job) -> int:
        kind = _run_kind(job)
        return self.seen.get(kind) or self.guesses.get(kind, PROCESS)

    def room(self, gpu: Gpu, beside: Iterable[tuple[Job, RamUse]], held: RamUse) -> int | None:
        """The bytes that a run may take beside others, which will still grow to what is expected of
        them. What the worker that waits for it holds already is its own."""
        free = self.free(gpu)
        if free is None:
            return None
        growth = sum(max(0, self.expected(job) - taken.now) for job, taken in beside)
        return int((1 - SPARE) * free) - growth + held.now


def _run_kind(job: Job) -> str:
    return f"{replace(job, seed=0).folder_name} {job.device}"


def free_ram_bytes(gpu: Gpu) -> int | None:
    if gpu is None:
        return _read_number("/proc/meminfo", "MemAvailable:", 1024)
    megabytes = query_nvidia_smi("memory.free", gpu)
    return int(megabytes[0]) * MIB if megabytes and megabytes[0].isdecimal() else None


def count_oom_kills() -> int | None:
    """How many processes the kernel has killed so far since there was no memory left."""
    return _read_number("/proc/vmstat", "oom_kill")


def _read_number(path: str, name: str, unit: int = 1) -> int | None:
    """From one of Linux's tables; None on other systems."""
    with suppress(OSError):
        for words in map(str.split, Path(path).read_text().splitlines()):
            if words[:1] == [name]:
                return int(words[1]) * unit
    return None


# ---- in a worker


def reset_ram_peak(device: str) -> None:
    """From here on, so that a run is not blamed for the one before."""
    gc.collect()
    if device == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def ram_use(device: str) -> RamUse:
    """By this process."""
    if device == "cuda":
        now, most = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
        return RamUse(now + CONTEXT, most + CONTEXT)
    status = f"/proc/{os.getpid()}/status"
    return RamUse(
        _read_number(status, "VmRSS:", 1024) or 0, _read_number(status, "VmHWM:", 1024) or 0
    )
