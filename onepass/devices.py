"""Where to compute, and how."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from onepass.errors import InputError, TooLargeError

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
    """`auto` is the GPU where there is one; a GPU that is not there is an error. Which of several
    it is makes no other run, so the name does not say.

    >>> resolve("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' is not there: torch sees no GPU; use cpu or auto")
    if re.fullmatch("cuda:[0-9]+", name):
        number = name.removeprefix("cuda:")
        raise InputError(
            f"device {name!r} is chosen by CUDA_VISIBLE_DEVICES={number} and then called 'cuda'"
        )
    if name not in ("cpu", "cuda"):
        raise InputError(f"device must be auto, cpu or cuda, not {name!r}")
    return torch.device(name)


@contextmanager
def room_for(numbers: Mapping[str, object]) -> Iterator[None]:
    """Where memory is taken: if there is not enough of it, the error names the large ones among
    these numbers, the settings that decide how much is asked for."""
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
