"""One run after another, with what they share loaded and made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from onepass import data
from onepass.data import Dataset
from onepass.errors import RunError
from onepass.executors import How, execute_all
from onepass.executors.here import Here
from onepass.job import Job
from onepass.learner import Learner

SHORT = Job("er", "synthetic", batch=60, device="cpu")


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = [SHORT, replace(SHORT, seed=1)]
    (tmp_path / jobs[0].folder_name).mkdir()
    (tmp_path / jobs[0].folder_name / "notes.txt").touch()
    ended = []
    with pytest.raises(RunError, match="something else"):
        for index, result in execute_all(jobs, How(tmp_path, resume=True), Here()):
            ended.append((index, result.seed))
    assert ended == [(1, 1)]


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
    assert len(list(execute_all(jobs, How(tmp_path), Here()))) == 4
    assert count == {"loaded": 1, "prints": 1, "prepared": 4}
