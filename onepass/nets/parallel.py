"""Two parts of a network at the same time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from onepass.nets.per_sample import in_vmap

Function = Callable[[Tensor], Tensor]


def at_once(x: Tensor, aside: Function, main: Function) -> tuple[Tensor, Tensor]:
    """aside(x) and main(x), and later their gradients, at the same time in a captured step: kernels
    of small batches leave most of a GPU idle. Otherwise one after the other, since an eager step
    waits for the host and not for the GPU."""
    if in_vmap(x) or not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return aside(x), main(x)
    line, branch = torch.cuda.current_stream(x.device), _branch(x.device)
    branch.wait_stream(line)
    with torch.cuda.stream(branch):
        first = aside(x)
    second = main(x)
    line.wait_stream(branch)
    return first, second


@lru_cache
def _branch(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
