"""onepass runs on a system without POSIX. Windows is simulated; it cannot be tried here."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from command import process

import onepass

# every new Python process imports this, workers included
WITHOUT = """
import sys
sys.modules["fcntl"] = sys.modules["resource"] = None
import os, signal
for name in ("SIGALRM", "SIGKILL", "setitimer", "alarm"):
    delattr(signal, name)
for name in ("O_NOFOLLOW", "sched_getaffinity", "posix_fallocate", "fork", "sysconf"):
    delattr(os, name)
"""
SWEEP = """
[defaults]
methods = ["er", "finetune"]
dataset = "synthetic"
batch = 60
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """Returns an environment in which Python lacks the POSIX-only modules and functions."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    root = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), root])}


def test_no_module_imports_a_posix_module_at_the_top() -> None:
    posix = re.compile("^(import|from) (fcntl|resource|pwd|grp|termios)", re.MULTILINE)
    files = Path(onepass.__file__).parent.rglob("*.py")
    assert not [path.name for path in files if posix.search(path.read_text())]


@pytest.mark.slow
def test_runs_workers_results_files_and_benchmarks_need_no_posix(
    elsewhere: dict[str, str], tmp_path: Path
) -> None:
    words = ("run", "er", "--dataset", "synthetic", "--batch", 60, "--device", "cpu", "--json")
    done = process(*words, "--out", tmp_path / "runs", env=elsewhere)
    assert done.status == 0, done.err
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(SWEEP)
    lines = tmp_path / "lines.jsonl"
    words = ("sweep", sweep, "--jobs", 2, "--device", "cpu", "--for", "90s", "--append", lines)
    done = process(*words, env=elsewhere)
    assert "2 finished" in done.err, done.err
    assert len(lines.read_text().splitlines()) == 2
    bench = ("bench", "er", "--memory", 20, "--classes", 4, "--steps", 5, "--shape", "6", "--json")
    timed = process(*bench, env=elsewhere)
    assert timed.record["peak_megabytes"] is None, timed.err
