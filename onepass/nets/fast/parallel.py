"""Runs independent branches of a network in parallel on CUDA streams.

Kernels of small batches leave most of a GPU idle, so a captured step runs independent branches on
several streams. An eager step is limited by the host, where streams would only add cost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from onepass.nets.fast.vmap import in_vmap

First = TypeVar("First")
Second = TypeVar("Second")


def is_capturing(x: Tensor) -> bool:
    """Returns whether operations on this tensor are being captured as a CUDA graph."""
    return x.is_cuda and not in_vmap(x) and torch.cuda.is_current_stream_capturing()


def in_parallel(
    x: Tensor, side: Callable[[Tensor], First], main: Callable[[Tensor], Second]
) -> tuple[First, Second]:
    """Returns side(x) and main(x). In a captured step they run at the same time, and so do their
    gradients later; otherwise one runs after the other."""
    if not is_capturing(x):
        return side(x), main(x)
    current, branch = torch.cuda.current_stream(x.device), stream_for("branch", x.device)
    branch.wait_stream(current)
    with torch.cuda.stream(branch):
        first = side(x)
    second = main(x)
    current.wait_stream(branch)
    for result in first.values() if isinstance(first, dict) else [first]:
        if isinstance(result, Tensor):
            # keeps its GPU memory from being reused before this stream has read it
            result.record_stream(current)
    return first, second


@lru_cache
def stream_for(purpose: str, device: torch.device) -> torch.cuda.Stream:
    """Returns the CUDA stream for a purpose: always the same one on a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
