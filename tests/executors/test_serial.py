"""The serial executor: one run after another, with shared data loaded once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import command
import pytest

import onepass
from onepass import data
from onepass.base.errors import RunError
from onepass.data import Dataset
from onepass.evaluation.callbacks import Progress
from onepass.executors import Fits, InOrder, RunOptions, execute_all
from onepass.executors.serial import Serial
from onepass.learning.learner import Learner
from onepass.runs.execute import run_job
from onepass.runs.spec import Job

SHORT = Job("er", "synthetic", batch=60, device="cpu")


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = [SHORT, replace(SHORT, seed=1)]
    (tmp_path / jobs[0].folder_name).mkdir()
    (tmp_path / jobs[0].folder_name / "notes.txt").touch()
    ended = []
    with pytest.raises(RunError, match="something else"):
        for index, result in execute_all(jobs, RunOptions(tmp_path, resume=True), Serial()):
            ended.append((index, result.seed))
    assert ended == [(1, 1)]


def test_the_queue_decides_which_job_comes_next(tmp_path: Path) -> None:
    class Backwards(InOrder):
        def take(self, fits: Fits) -> int | None:
            return self.waiting.pop() if self.waiting else None

    jobs = [replace(SHORT, seed=seed) for seed in range(3)]
    ended = execute_all(jobs, RunOptions(tmp_path), Serial(), queue=Backwards(jobs[:2]))
    assert [(index, result.seed) for index, result in ended] == [(1, 1), (0, 0)]


def test_a_bug_that_does_not_recur_costs_nothing_and_one_that_recurs_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try resumes where the first one failed, even without --resume."""
    step, tries = onepass.ER.step, {0: 1, 1: 2}
    began: list[tuple[int, int]] = []

    def failing(learner: onepass.ER, x: object, y: object) -> object:
        if learner.steps == 5 and tries.get(learner.seed):
            tries[learner.seed] -= 1
            raise ValueError("a bug")
        return step(learner, x, y)

    def watch(index: int, now: Progress) -> None:
        if now.step in (0, 5):
            began.append((index, now.step))

    jobs = [replace(SHORT, seed=seed) for seed in range(2)]
    whole = run_job(jobs[0], tmp_path / "whole")
    monkeypatch.setattr(onepass.ER, "step", failing)
    ended = execute_all(jobs, RunOptions(tmp_path, checkpoint=1), Serial(), watch)
    index, result = next(ended)
    assert (index, result.state_sha256) == (0, whole.state_sha256)
    with pytest.raises(ValueError, match="a bug"):
        next(ended)
    assert list(dict.fromkeys(began)) == [(0, 0), (0, 5), (1, 0), (1, 5)]


def test_fail_fast_stops_the_command_at_the_first_failure(tmp_path: Path) -> None:
    job = replace(SHORT, seed=0)
    (tmp_path / job.folder_name).mkdir()
    (tmp_path / job.folder_name / "notes.txt").touch()
    arguments = [
        "run",
        "er",
        "--preset",
        "common",
        "--dataset",
        "synthetic",
        "--batch",
        60,
        "--seeds",
        2,
    ]
    options = ["--device", "cpu", "--resume", "--fail-fast", "--out", tmp_path]
    done = command.onepass(*arguments, *options)
    assert done.status == 2
    assert "something else" in done.error
    assert [path.name for path in tmp_path.iterdir()] == [job.folder_name]


def test_data_are_loaded_once_their_fingerprint_made_once_and_each_learner_prepared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = {"loaded": 0, "prints": 0, "prepared": 0}
    load, prepare = data.load, Learner.prepare
    made = Dataset.__dict__["_fingerprint"].func

    def counting_load(*arguments: object, **options: object) -> Dataset:
        count["loaded"] += 1
        return load(*arguments, **options)

    def counting_prepare(learner: Learner, *arguments: object) -> None:
        count["prepared"] += 1
        prepare(learner, *arguments)

    def counting_print(dataset: Dataset) -> str:
        count["prints"] += 1
        return made(dataset)

    monkeypatch.setattr(data, "load", counting_load)
    monkeypatch.setattr(Learner, "prepare", counting_prepare)
    monkeypatch.setattr(Dataset.__dict__["_fingerprint"], "func", counting_print)
    jobs = [replace(SHORT, method=m, seed=s) for m in ("er", "finetune") for s in (0, 1)]
    assert len(list(execute_all(jobs, RunOptions(tmp_path), Serial()))) == 4
    assert count == {"loaded": 1, "prints": 1, "prepared": 4}
