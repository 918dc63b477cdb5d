"""Importing onepass is fast, commands import only what they need, and training leaves the global
generators alone."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import onepass
from onepass.runs.execute import run_job
from onepass.runs.spec import Job

IMPORT = """
import json, sys, time
began = time.process_time()
import onepass
seconds, modules = time.process_time() - began, list(sys.modules)
"""
TRAIN = """
from pathlib import Path
from onepass.runs.spec import Job
from onepass.runs.execute import run_job
run_job(Job("gsa", "synthetic", batch=60), Path(sys.argv[1]))
"""
REPORT = """
print(json.dumps([seconds, modules, list(sys.modules)]))
"""
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from onepass.cli import main
main()
"""
LINES = str(Path(__file__).parents[1] / "results" / "lines" / "table1.jsonl")
RUNS = "a folder of runs"
HEAVY = {"typer", "click", "rich", "matplotlib", "sklearn", "scipy", "pandas"}
EXTRAS = {"optuna", "sqlalchemy", "pyarrow", "datasets"}
COMMAND = """
import contextlib, io, json, sys
from onepass.cli import main
sys.argv = ["onepass", "run", "er", "--dataset", "synthetic", "--batch", "60", "--out", sys.argv[1]]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
print(json.dumps(list(sys.modules)))
"""


def python(code: str, *arguments: object) -> Any:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with one run."""
    out = tmp_path_factory.mktemp("runs")
    run_job(Job("finetune", "synthetic", batch=60), out)
    return out


class Imported(NamedTuple):
    """The seconds of an import, and the loaded modules after it and after a run."""

    seconds: float
    modules: list[str]
    trained: list[str]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    return Imported(*python(IMPORT + TRAIN + REPORT, tmp_path_factory.mktemp("imported")))


def test_importing_onepass_takes_under_a_tenth_of_a_second(imported: Imported) -> None:
    """The time is CPU time; a busy machine has two more tries."""
    again = (python(IMPORT + REPORT)[0] for _ in range(2))
    assert any(seconds < 0.1 for seconds in itertools.chain([imported.seconds], again))


def test_importing_onepass_brings_in_nothing_heavy(imported: Imported) -> None:
    packages = {name.split(".")[0] for name in imported.modules}
    assert not packages & (HEAVY | {"torch", "numpy", "PIL"})


def test_every_public_name_can_be_imported() -> None:
    assert {name for name in onepass.__all__ if getattr(onepass, name) is not None} >= {
        *("GSA", "ER", "Learner", "ClassIncremental", "evaluate", "load", "open", "__version__")
    }
    with pytest.raises(AttributeError, match="no attribute 'GSAA'"):
        onepass.GSAA  # noqa: B018 - the access raises


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("-h",),
        ("run", "-h"),
        ("sweep", "-h"),
        ("table", LINES),
        ("table", LINES, "--format", "csv", "--pivot", "memory"),
        ("list", "encoders"),
        ("runs", "list", LINES),
        ("runs", "list", RUNS),
    ],
    ids=lambda arguments: " ".join(map(str, arguments)),
)
def test_a_command_that_computes_nothing_needs_no_torch(
    arguments: tuple[str, ...], finished_run: Path
) -> None:
    words = [str(finished_run) if argument == RUNS else argument for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("rror")) == (0, 0), done.stderr
    assert done.stdout


def test_a_training_run_needs_torch_numpy_and_pillow_only(imported: Imported) -> None:
    packages = {name.split(".")[0] for name in imported.trained}
    assert {"torch", "numpy", "onepass"} <= packages
    assert not packages & HEAVY


def test_the_command_imports_no_extra_without_need(tmp_path: Path) -> None:
    packages = {name.split(".")[0] for name in python(COMMAND, tmp_path)}
    assert {"typer", "rich", "onepass"} <= packages
    assert not packages & EXTRAS


def test_a_training_run_neither_reads_nor_moves_the_global_generators(tmp_path: Path) -> None:
    results = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
        results.append(run_job(Job("gsa", "synthetic", batch=60), tmp_path / str(seed)))
        after = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
        assert before == after
    assert results[0].state_sha256 == results[1].state_sha256
