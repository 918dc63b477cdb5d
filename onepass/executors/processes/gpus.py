"""Which GPUs there are, and on which one a run goes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice

import torch

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
TIMEOUT = 20  # seconds, for a driver that wakes up

Gpu = str | None  # a word that CUDA_VISIBLE_DEVICES takes; None: no GPU, but this machine's cores


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: in the user's words,
    or several by UUIDs, which mean the same card to CUDA, its multi-process service and nvidia-smi.
    CUDA itself is not started here: it would take memory on every card."""
    count = torch.cuda.device_count()
    chosen = [
        word.strip() for word in os.environ.get(VISIBLE_DEVICES, "").split(",") if word.strip()
    ]
    names = chosen or (query_nvidia_smi("uuid") if count > 1 else [])
    return names[:count] if len(names) >= count else [str(number) for number in range(count)]


def query_nvidia_smi(what: str, gpu: str | None = None) -> list[str]:
    """What nvidia-smi says of each card, or of one; nothing where it cannot be asked."""
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    one = [] if gpu is None else [f"--id={gpu}"]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*command, *one], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if done.returncode == 0:
            return done.stdout.split()
    return []


def spread_over_gpus(at_once: int, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The place of each of several runs at once, evenly over the GPUs.

    >>> spread_over_gpus(5, ["0", "1"])
    ['0', '1', '0', '1', '0']
    """
    return list(islice(cycle(gpus), at_once))


def least_loaded(free: Sequence[Gpu], busy: Sequence[Gpu]) -> int:
    """Which of the free places is to be taken next, by its number: one on the GPU with the fewest
    runs.

    >>> least_loaded(["0", "0", "1"], busy=["0", "1", "0"])
    2
    """
    return min(range(len(free)), key=lambda number: busy.count(free[number]))


@contextmanager
def bound_to(gpu: Gpu) -> Iterator[None]:
    """A process that is started meanwhile sees this GPU and no other, so that it is plain `cuda`
    there, whichever card it is."""
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
