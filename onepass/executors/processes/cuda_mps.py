"""Several processes on a GPU.

They share the card through CUDA's multi-process service (MPS) where it is installed: their kernels
then run side by side instead of taking turns. The small steps of one run leave most of a large card
idle, so several runs together finish far sooner.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from onepass.executors.processes.gpus import VISIBLE_DEVICES


@contextmanager
def cuda_mps_service(device: str) -> Iterator[None]:
    """A multi-process service of our own, unless there is no GPU, no such program, or one that the
    user has started."""
    control = shutil.which("nvidia-cuda-mps-control")
    if device != "cuda" or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        places = {name: folder for name in names if name not in os.environ}
        os.environ.update(places)
        # It serves every card: it would number anew those that it is shown, and a process that
        # asks for the second by the old number would find none.
        every = {name: value for name, value in os.environ.items() if name != VISIBLE_DEVICES}
        begun = subprocess.run([control, "-d"], capture_output=True, env=every, check=False)
        try:
            yield
        finally:
            if begun.returncode == 0:
                subprocess.run([control], input=b"quit\n", capture_output=True, check=False)
            for name in places:
                del os.environ[name]
