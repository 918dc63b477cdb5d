"""Where to compute, and how."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from onepass.base.errors import InputError, TooLargeError
from onepass.base.text import quoted

if TYPE_CHECKING:
    import torch

SMALLEST = math.ulp(0.0)  # above 0, unless numbers that small count as 0
LARGE = 10_000  # a number that is worth a word when there is no room
# How torch says, besides by errors of their own, that there is no room or that its numbers end.
NO_ROOM = (
    "can't allocate memory",
    "not enough memory",
    "Storage size calculation overflowed",
    "integer multiplication overflow",
    "Overflow when unpacking long",
    "too big to convert",
    "without overflow",
    "cannot be represented as a SymInt",
)


def resolve(name: str) -> torch.device:
    """`auto` is NVIDIA's GPU where there is one, else the CPU; `mps` is Apple's. A GPU that is not
    there is an error.

    >>> resolve("cpu")
    device(type='cpu')
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch("cuda(:[0-9]{1,3})?", name):
        seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not seen:
            raise InputError(f"device {name!r} is not there: torch sees no GPU; use cpu or auto")
        if int(name.partition(":")[2] or 0) >= seen:
            raise InputError(f"device {name!r} is not there: the last one is cuda:{seen - 1}")
    elif name == "mps":
        if not torch.backends.mps.is_available():
            raise InputError("device 'mps' is not there: torch sees no GPU of Apple's; use cpu")
    elif name != "cpu":
        raise InputError(f"device must be auto, cpu, mps, cuda or cuda:N, not {quoted(name)}")
    return torch.device(name)


def kind(name: str) -> str:
    """Without its number: which of several GPUs it is makes no other run.

    >>> kind("cuda:1"), kind("cpu")
    ('cuda', 'cpu')
    """
    return name.partition(":")[0]


def current(name: str) -> AbstractContextManager[object]:
    """Inside, streams, graphs and kernels that do not say on which GPU they are go to this one."""
    if kind(name) == name:
        return nullcontext()
    import torch

    return torch.cuda.device(name) if torch.cuda.is_available() else nullcontext()


@contextmanager
def no_subnormals() -> Iterator[None]:
    """Inside, results too near to 0 for a float of full precision are 0. Adam's moments of a weight
    that gets no gradient come there within a thousand steps (the pixels around a digit are always
    0), and a processor takes many times as long for such numbers, of which nothing depends.

    With several threads nothing is changed: each has a mode of its own, that of the thread which
    happened to start it, and the bits would depend on that.
    """
    import torch

    if torch.get_num_threads() > 1 or SMALLEST == 0:
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def finest(device: torch.device) -> torch.dtype:
    """The floats with the most digits that a device has: Apple's GPU has no doubles."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def free_bytes(device: torch.device) -> int | None:
    """Returns how much memory a GPU has left for tensors of this process; None where nobody knows.

    >>> free_bytes(resolve("cpu")) is None
    True
    """
    import torch

    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def at_hand(value: torch.Tensor) -> bool:
    """Whether reading it waits for nothing: it lies on the host. (A fake tensor has no value.)"""
    import torch

    return value.device.type == "cpu" and type(value) is torch.Tensor


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def room_for(numbers: Mapping[str, object]) -> Iterator[None]:
    """Where memory is taken: if there is not enough of it, the error names the large ones among
    these numbers, the settings that decide how much is asked for."""
    import torch

    try:
        yield
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as problem:
        lacking = isinstance(problem, MemoryError | torch.OutOfMemoryError)
        if not lacking and not any(words in str(problem) for words in NO_ROOM):
            raise
        large = {
            name: value
            for name, value in numbers.items()
            if isinstance(value, int) and value >= LARGE
        }
        told = ", ".join(f"{name}={value}" for name, value in large.items())
        raise TooLargeError(
            f"there is not enough room on this machine for {told or 'a step'}"
        ) from None


def allow_determinism() -> None:
    """What CUDA asks for; it counts only before the GPU is first used."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def computing(threads: int, deterministic: bool) -> Iterator[None]:
    """With this many threads, and the same bits each time if asked; both are put back after."""
    import torch

    before, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    if deterministic:
        allow_determinism()
    if deterministic and not strict:  # the call imports torch's compiler, a second or two
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if deterministic and not strict:
            torch.use_deterministic_algorithms(False)
