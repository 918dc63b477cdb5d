"""The choice of the executor and of the number of runs at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from command import onepass
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass import executors
from onepass.executors.select import AtOnce, runs_at_once
from onepass.runs.spec import Job


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends to have more cores; a small machine would have one run at a time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.just("auto") | st.integers(1, 40),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 64),
    st.sampled_from(["cpu", "cuda"]),
    st.integers(0, 3),
)
def test_there_are_never_more_at_once_than_cores_for_their_threads_nor_than_jobs(
    wanted: AtOnce, jobs: int, threads: int, cores: int, device: str, gpus: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: gpus)
        patch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        some = [Job("er", seed=seed, threads=threads, device=device) for seed in range(jobs)]
        found = runs_at_once(wanted, some)
    room = max(1, cores // threads)
    most = 8 * max(1, gpus) if device == "cuda" else room
    assert found == min(most if wanted == "auto" else wanted, room, jobs)
    assert 1 <= found <= jobs


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", "two", "1e3"])
def test_an_impossible_number_of_jobs_is_refused(text: str, tmp_path: Path) -> None:
    arguments = ("run", "finetune", "--dataset", "synthetic", "--device", "cpu", "--out", tmp_path)
    done = onepass(*arguments, "--jobs", text)
    assert done.status == 2
    assert "--jobs" in done.error and f"{text!r}" in done.error
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "expected"), [("auto", 2), ("2", 2), ("9", 2), ("1", 1)])
def test_the_option_jobs_sets_the_number_of_runs_at_once(
    text: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def nothing(jobs: object, how: object, executor: object, *_: object, **__: object) -> Any:
        seen.append(getattr(executor, "at_once", 1))
        return iter(())

    monkeypatch.setattr(executors, "execute_all", nothing)
    arguments = ("run", "finetune", "--dataset", "synthetic", "--device", "cpu", "--seeds", 3)
    done = onepass(*arguments, "--jobs", text, "--json", "--out", tmp_path)
    assert done.status == 0, done.err
    assert seen == [expected]
