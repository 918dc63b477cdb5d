"""The command of a run, typed into a shell, asks for that run."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command import onepass

from onepass.cli import run as run_module
from onepass.runs.rerun_command import job_command, rerun_command
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job

CHOICES: dict[str, list[Any]] = {
    "method": ["er", "finetune", "gsa-released", "joint"],
    "dataset": ["digits", "synthetic"],
    "memory": [0, 7, 100],
    "seed": [0, 3],
    "stream": ["class-incremental", "long-tail:rho=10", "blurry:n=50,m=10"],
    "tasks": [None, 2],
    "batch": [10, 33],
    "class_order": ["natural", "shuffled"],
    "normalise": ["dataset", "first-task"],
    "validation": [0.0, 0.1],
    "every": [None, 5],
    "prequential": [False, True],
    "threads": [1, 2],
    "deterministic": [False, True],
    "settings": [{}, {"lr": "0.00123"}, {"precision": "bf16", "average": "growing"}],
}


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Collects the jobs that `onepass run` is asked for, and runs none."""
    jobs: list[Job] = []
    monkeypatch.setattr(run_module, "_run_jobs", lambda given, *_: jobs.extend(given) or [])
    monkeypatch.setattr(run_module, "_print_results", lambda *_: None)
    monkeypatch.setattr("onepass.base.devices.allow_determinism", lambda: None)
    return jobs


def typed(line: str) -> None:
    name, *words = shlex.split(line)
    done = onepass(*words)
    assert (name, done.status) == ("onepass", 0), done.err


@pytest.mark.parametrize("seed", range(20))
def test_the_command_of_any_job_asks_for_the_same_run(seed: int, asked_for: list[Job]) -> None:
    rng = Random(seed)
    job = Job(**{name: rng.choice(values) for name, values in CHOICES.items()}, device="cpu")
    typed(job_command(job, seeds=2))
    job = RunResources().with_fingerprint(job)
    wanted = [job.identity, replace(job, seed=job.seed + 1).identity]
    assert [RunResources().with_fingerprint(found).identity for found in asked_for] == wanted


def test_own_data_are_named_wherever_the_shell_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_for: list[Job]
) -> None:
    for name in ("a b.csv", "test.csv"):
        rows = "".join(f"{n},{n % 7},kind {n % 4}\n" for n in range(80))
        (tmp_path / name).write_text(f"x,y,what is it\n{rows}")
    monkeypatch.chdir(tmp_path)
    own: Any = {"label": "what is it", "test": "test.csv", "data_root": "."}
    job = RunResources().with_fingerprint(Job("er", "a b.csv", tasks=2, device="cpu", **own))
    line = job_command(job)
    monkeypatch.chdir("/")
    typed(line)
    (found,) = asked_for
    assert (found.identity, found.data_root) == (job.identity, str(tmp_path))


def test_a_label_named_true_is_a_value() -> None:
    recorded = {"method": "er", "dataset": "a.csv", "seed": 0, "variant": "label=True"}
    assert "--label True" in rerun_command(recorded)
