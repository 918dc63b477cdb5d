"""Finds the GPUs of this machine, and spreads slots and processes over them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice

import torch

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
TIMEOUT = 20  # seconds for nvidia-smi; a driver that has been idle takes long to answer

Gpu = str | None  # a GPU as CUDA_VISIBLE_DEVICES names it; None: the CPU


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them. If the user
    has not set that variable, several GPUs are named by UUID, which means the same GPU to CUDA,
    CUDA MPS and nvidia-smi; without nvidia-smi, or for one GPU, by number. CUDA stays
    uninitialised, because it would take memory on every GPU."""
    count = torch.cuda.device_count()
    chosen = [
        word.strip() for word in os.environ.get(VISIBLE_DEVICES, "").split(",") if word.strip()
    ]
    names = chosen or (query_nvidia_smi("uuid") if count > 1 else [])
    return names[:count] if len(names) >= count else [str(number) for number in range(count)]


def query_nvidia_smi(what: str, gpu: str | None = None) -> list[str]:
    """Returns the property `what`, such as `uuid`, of each GPU, or of `gpu` only, from nvidia-smi.
    Returns an empty list if the program is missing or fails."""
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    selected = [] if gpu is None else [f"--id={gpu}"]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*command, *selected], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if done.returncode == 0:
            return done.stdout.split()
    return []


def spread_over_gpus(at_once: int, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Returns a GPU for each of `at_once` slots, so that the GPUs have equally many.

    >>> spread_over_gpus(5, ["0", "1"])
    ['0', '1', '0', '1', '0']
    """
    return list(islice(cycle(gpus), at_once))


def least_loaded(free: Sequence[Gpu], busy: Sequence[Gpu]) -> int:
    """Returns the index in `free` of the slot to take next: one on the GPU with the fewest runs.
    `free` and `busy` hold the GPU of each free and of each busy slot.

    >>> least_loaded(["0", "0", "1"], busy=["0", "1", "0"])
    2
    """
    return min(range(len(free)), key=lambda number: busy.count(free[number]))


@contextmanager
def bound_to(gpu: Gpu) -> Iterator[None]:
    """Makes processes that start in the `with` block see this GPU and no other. In them its name is
    plain `cuda`. None changes nothing."""
    before = os.environ.get(VISIBLE_DEVICES)
    if gpu is not None:
        os.environ[VISIBLE_DEVICES] = gpu
    try:
        yield
    finally:
        if before is not None:
            os.environ[VISIBLE_DEVICES] = before
        elif gpu is not None:
            del os.environ[VISIBLE_DEVICES]
