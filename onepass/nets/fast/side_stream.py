"""Work beside the rest of a captured step.

Nothing in a step waits for the memory to take the batch in, so a captured step does it on a stream
of its own while gradients are computed. An eager step waits for the host and not for the GPU: there
it is done at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onepass.nets.fast.parallel import is_capturing, stream_for


class SideStream:
    """One piece of work after another, until they are waited for."""

    def __init__(self) -> None:
        self._used: list[Tensor] = []

    def start(self, work: Callable[[], None], *used: Tensor) -> None:
        """Does the work, which reads the tensors `used`."""
        if not is_capturing(used[0]):
            work()
            return
        branch = stream_for("side", used[0].device)
        branch.wait_stream(torch.cuda.current_stream(used[0].device))
        with torch.cuda.stream(branch):
            work()
        self._used += used  # their memory is not for others before the work is done

    def wait(self) -> None:
        """What comes next may use what the work has changed."""
        if self._used:
            device = self._used[0].device
            torch.cuda.current_stream(device).wait_stream(stream_for("side", device))
        self.forget()

    def forget(self) -> None:
        """The step has ended, or has failed: nothing is waited for any more."""
        self._used = []
