"""Where a run is computed: versions, machine, commit, and the state of a user's own method."""

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
    """Returns the versions on which the bits of a run depend."""
    import torch

    return {"onepass": __version__, "torch": str(torch.__version__)}


def last_versions(described: dict[str, Any], since: OtherVersions) -> dict[str, Any]:
    """Returns what run.json says, or, for a run that was resumed `--anyway`, what it last went on
    with."""
    return {**described, **(since[-1] if since else {})}


def method_source_digest(method: str) -> str | None:
    """Returns a digest of the file that defines a method of the user's; None for our own methods,
    which go by their versions, and for a method that was typed at a prompt."""
    module = registry.get(method).learner.__module__
    if module.startswith("onepass."):
        return None
    with suppress(OSError, TypeError):  # as inspect says that there is no file
        path = inspect.getsourcefile(sys.modules[module])
        return hashlib.sha256(Path(str(path)).read_bytes()).hexdigest()[:12]
    return None


def describe_environment() -> dict[str, Any]:
    """Returns versions, machine and commit, which are needed to make a number again."""
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
    """Returns its name and the widest instructions that torch uses there: another kind rounds
    differently, so that a run with the same seed ends as if its seed were another."""
    import torch

    name = platform.processor()
    with suppress(OSError):  # which tells more, on Linux
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = next(iter(names), name)
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def commit() -> dict[str, Any]:
    """Returns the commit of the tree that runs and whether it had changes; None once installed."""
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
