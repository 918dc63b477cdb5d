"""Parts of a network at the same time.

Kernels of small batches leave most of a GPU idle, so a captured step puts what does not wait for
each other on several streams. An eager step waits for the host and not for the GPU; there it would
only cost.
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


def capturing(x: Tensor) -> bool:
    """Whether what is done with this tensor now is being captured as a graph."""
    return x.is_cuda and not in_vmap(x) and torch.cuda.is_current_stream_capturing()


def at_once(
    x: Tensor, aside: Callable[[Tensor], First], main: Callable[[Tensor], Second]
) -> tuple[First, Second]:
    """aside(x) and main(x), and later their gradients, at the same time in a captured step,
    otherwise one after the other."""
    if not capturing(x):
        return aside(x), main(x)
    line, branch = torch.cuda.current_stream(x.device), stream_for("branch", x.device)
    branch.wait_stream(line)
    with torch.cuda.stream(branch):
        first = aside(x)
    second = main(x)
    line.wait_stream(branch)
    for one in first.values() if isinstance(first, dict) else [first]:
        if isinstance(one, Tensor):
            one.record_stream(line)  # its memory is not for others before it has been read here
    return first, second


@lru_cache
def stream_for(purpose: str, device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
