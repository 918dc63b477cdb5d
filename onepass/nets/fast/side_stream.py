"""A side stream for work that the rest of a captured step does not wait for.

A captured step stores the batch in the memory on this stream while it computes gradients. An eager
step is limited by the host, not by the GPU, so it does the work immediately.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onepass.nets.fast.parallel import is_capturing, stream_for


class SideStream:
    """A CUDA stream that runs pieces of work in order, beside the main stream."""

    def __init__(self) -> None:
        self._used: list[Tensor] = []

    def start(self, work: Callable[[], None], *used: Tensor) -> None:
        """Runs the work, which reads the tensors `used`. In a captured step it runs on the side
        stream, otherwise immediately."""
        if not is_capturing(used[0]):
            work()
            return
        branch = stream_for("side", used[0].device)
        branch.wait_stream(torch.cuda.current_stream(used[0].device))
        with torch.cuda.stream(branch):
            work()
        self._used += used  # keeps their GPU memory from being reused before the work is done

    def wait(self) -> None:
        """Makes the main stream wait until all work is done. The host does not wait."""
        if self._used:
            device = self._used[0].device
            torch.cuda.current_stream(device).wait_stream(stream_for("side", device))
        self.drop()

    def drop(self) -> None:
        """Releases the tensors that the work reads, without waiting for it. It is called when a
        step has ended or failed."""
        self._used = []
