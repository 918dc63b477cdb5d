"""Describes where a run is computed: versions, machine, commit, and the source file of a user's
method."""

from __future__ import annotations

import hashlib
import inspect
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from onepass.learning import registry
from onepass.version import __version__

OtherVersions = list[dict[str, int | str]]


def versions() -> dict[str, str]:
    """Returns the versions of onepass and torch, on which the bits of a run depend."""
    import torch

    return {"onepass": __version__, "torch": str(torch.__version__)}


def last_versions(described: dict[str, Any], since: OtherVersions) -> dict[str, Any]:
    """Returns run.json's content, which is `described`. `since` holds the versions of resumptions
    with `--anyway`; those of the last one replace the versions of the start."""
    return {**described, **(since[-1] if since else {})}


def method_source_digest(method: str) -> str | None:
    """Returns a digest of the source file of a user's method. Returns None for our own methods,
    which the version of onepass identifies, and for a method without a file, typed at a prompt."""
    module = registry.get(method).learner.__module__
    if module.startswith("onepass."):
        return None
    with suppress(OSError, TypeError):  # inspect raises them if there is no file
        path = inspect.getsourcefile(sys.modules[module])
        return hashlib.sha256(Path(str(path)).read_bytes()).hexdigest()[:12]
    return None


def describe_environment() -> dict[str, Any]:
    """Returns the versions, the machine and the commit: the facts that help to reproduce a run."""
    import numpy as np
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
        "processor": processor(),
        **commit(),
    }


def processor() -> str:
    """Returns the name of the processor and the widest instruction set that torch uses on it.
    Kinds of processors round differently, so a seed gives other numbers on another kind."""
    import torch

    name = platform.processor()
    with suppress(OSError):  # on Linux this file has the full name
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = next(iter(names), name)
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def commit() -> dict[str, Any]:
    """Returns the commit of the source tree, and whether it has changes (`dirty`). Both are None
    without a git tree, as in an installed package."""
    tree = Path(__file__).resolve().parents[2]
    if not (tree / ".git").exists():
        return {"commit": None, "dirty": None}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tree), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
