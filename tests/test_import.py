"""What importing and training cost: time, other packages, and the global generators."""

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

from onepass.runs.execute import run
from onepass.runs.spec import Job

IMPORT = """
import json, random, sys, time
import torch
import numpy

def generators():
    return str([random.getstate(), numpy.random.get_state(), torch.get_rng_state().tolist()])

before, began = generators(), time.process_time()
import onepass
seconds = time.process_time() - began
same, modules = generators() == before, list(sys.modules)
"""
TRAIN = """
from pathlib import Path
from onepass.runs.spec import Job
from onepass.runs.execute import run
run(Job("gsa", "synthetic", batch=60), Path(sys.argv[1]))
"""
TELL = """
print(json.dumps([seconds, same, modules, list(sys.modules)]))
"""
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


class Imported(NamedTuple):
    """How long it took, whether no generator moved, and the modules of then and after a run."""

    seconds: float
    same: bool
    modules: list[str]
    trained: list[str]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    return Imported(*python(IMPORT + TRAIN + TELL, tmp_path_factory.mktemp("imported")))


def test_importing_onepass_takes_under_half_a_second_more_than_torch(imported: Imported) -> None:
    """Of the processor; a busy machine is given two more chances."""
    again = (python(IMPORT + TELL)[0] for _ in range(2))
    assert any(seconds < 0.5 for seconds in itertools.chain([imported.seconds], again))


def test_importing_onepass_brings_in_nothing_heavy(imported: Imported) -> None:
    packages = {name.split(".")[0] for name in imported.modules}
    assert not packages & HEAVY


def test_importing_onepass_moves_no_global_generator(imported: Imported) -> None:
    assert imported.same


def test_a_training_run_needs_torch_numpy_and_pillow_only(imported: Imported) -> None:
    packages = {name.split(".")[0] for name in imported.trained}
    assert {"torch", "numpy", "onepass"} <= packages
    assert not packages & HEAVY


def test_the_command_imports_no_extra_unless_it_is_asked_to(tmp_path: Path) -> None:
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
        results.append(run(Job("gsa", "synthetic", batch=60), tmp_path / str(seed)))
        after = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
        assert before == after
    assert results[0].state_sha256 == results[1].state_sha256
