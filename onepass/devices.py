"""Where to compute, and how."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from onepass.errors import InputError


def resolve(name: str) -> torch.device:
    """`auto` is the GPU where there is one; a GPU that is not there is an error.

    >>> resolve("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' is not there: torch sees no GPU; use cpu or auto")
    if name not in ("cpu", "cuda"):
        raise InputError(f"device must be auto, cpu or cuda, not {name!r}")
    return torch.device(name)


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
