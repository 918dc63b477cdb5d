"""Lets several processes share a GPU through CUDA MPS, NVIDIA's multi-process service.

With the service, kernels of different processes run side by side instead of taking turns. The small
steps of one run leave most of a large GPU idle, so several runs together finish far sooner.
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
    """Runs a CUDA MPS service of our own during the `with` block. Does nothing if `device` is not a
    GPU, without the program, or if CUDA_MPS_PIPE_DIRECTORY is set, because the user then has a
    service. A service that does not start is no error: runs then take turns."""
    control = shutil.which("nvidia-cuda-mps-control")
    if device != "cuda" or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        folders = {name: folder for name in names if name not in os.environ}
        os.environ.update(folders)
        # The service must see every GPU. It renumbers those that it sees, so with a subset a
        # process that names the second GPU by its old number would find none.
        every = {name: value for name, value in os.environ.items() if name != VISIBLE_DEVICES}
        started = subprocess.run([control, "-d"], capture_output=True, env=every, check=False)
        try:
            yield
        finally:
            if started.returncode == 0:
                subprocess.run([control], input=b"quit\n", capture_output=True, check=False)
            for name in folders:
                del os.environ[name]
