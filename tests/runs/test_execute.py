"""The results of methods that train outside of steps, and the data and versions with which a run
resumes."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from command import onepass, untouched, values_of
from label_vectors import TrainsAtTaskEnd, register
from recording_listeners import Stopped, stop_after

from onepass import DataError, Finetune, load
from onepass.base.errors import RunError
from onepass.data import DATASETS
from onepass.learning.traits import Traits
from onepass.report import layout, rows
from onepass.runs.environment import versions
from onepass.runs.execute import run_job
from onepass.runs.spec import Job

JOB = Job("er", "synthetic", batch=30, device="cpu")  # 20 steps
SAME = ("state_sha256", "accuracy", "accuracy_matrix", "anytime_accuracy")


@dataclass(kw_only=True, eq=False)
class Late(Finetune):
    """A learner whose traits say that it trains before it is scored."""

    traits: ClassVar[Traits] = replace(Finetune.traits, trains_to_score=True)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    register(monkeypatch, TrainsAtTaskEnd, Late)


def test_a_result_counts_images_beside_steps_and_a_stop_at_a_tasks_end_changes_no_bit(tmp_path):
    job = Job("test-trainsattaskend", "synthetic", device="cpu")
    whole = run_job(job, tmp_path / "whole")
    for step in (12, 30):  # the first task's last step, and one inside the third
        with pytest.raises(Stopped):
            run_job(
                job, tmp_path / "broken", resume=True, checkpoint=6, listeners=[stop_after(step)]
            )
    result = run_job(job, tmp_path / "broken", resume=True)
    points = len((tmp_path / "whole" / job.folder_name / "events.jsonl").read_text().splitlines())
    assert whole.images_beside_steps == {
        "task ends": {"trained": 5 * 4, "scored": 5},
        "scores": {"trained": 0, "scored": 3 * points},
    }
    for key in ("images_beside_steps", "state_sha256", "accuracy_matrix"):
        assert getattr(result, key) == getattr(whole, key), key


def test_a_run_scored_only_at_the_end_has_no_forgetting_rather_than_zero(tmp_path):
    result = run_job(Job("test-late", "synthetic", device="cpu"), tmp_path)
    assert result.forgetting is None
    assert result.forgetting_all_tasks is None
    assert result.accuracy_matrix[:-1] == [[None] * 5] * 4
    assert None not in result.accuracy_matrix[-1]
    assert result.anytime_accuracy is None
    assert result.accuracy == pytest.approx(result.mean_task_accuracy)
    (row,) = rows.summarise([result])
    assert row.over("forgetting") is None
    table = layout.make_table([row])
    assert [len(cells) for cells in table.body] == [len(table.header)]

    whole = run_job(Job("test-late", "synthetic", device="cpu", every=30), tmp_path)
    assert whole.forgetting >= 0
    assert whole.params_sha256 == result.params_sha256


# ---- other data and versions


def test_a_finished_run_on_other_data_of_the_same_name_is_refused(tmp_path, monkeypatch):
    first = run_job(JOB, tmp_path)
    data = load("synthetic")
    changed = data.test_x.clone()
    changed[7, 0, 3, 3] ^= 1  # one bit of one image
    own = replace(DATASETS["synthetic"], make=lambda: replace(data, test_x=changed))
    monkeypatch.setitem(DATASETS.entries, "synthetic", own)
    with untouched(tmp_path), pytest.raises(RunError, match="other data"):
        run_job(JOB, tmp_path, resume=True)

    def gone():
        raise DataError("there is no such thing")

    # the data are gone, so they are not checked
    monkeypatch.setitem(DATASETS.entries, "synthetic", replace(own, make=gone))
    assert run_job(JOB, tmp_path, resume=True) == first


def stopped(out, step, **options):
    with pytest.raises(Stopped):
        run_job(JOB, out, resume=True, checkpoint=5, listeners=[stop_after(step)], **options)


def test_a_broken_run_resumes_under_other_versions_only_with_anyway_and_records_it(
    tmp_path, monkeypatch
):
    whole = run_job(JOB, tmp_path / "whole")
    here, out = versions(), tmp_path / "broken"
    stopped(out, 7)
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    with untouched(out), pytest.raises(RunError, match=r"torch .*9\.9\.0.*--anyway") as refused:
        run_job(JOB, out, resume=True)
    assert here["torch"] in str(refused.value)
    assert "\n" not in str(refused.value)
    stopped(out, 12, anyway=True)  # resumed from step 5
    stopped(out, 17)  # under the versions of the last checkpoint
    monkeypatch.setattr("onepass.runs.environment.__version__", "0.0.9")
    with untouched(out), pytest.raises(RunError, match=r"onepass .*0\.0\.9"):
        run_job(JOB, out, resume=True)
    result = run_job(JOB, out, resume=True, anyway=True)
    assert values_of(result, SAME) == values_of(whole, SAME)
    written = json.loads((Path(result.out) / "result.json").read_text())["other_versions"]
    assert (
        result.other_versions
        == written
        == [
            {"step": 5, "onepass": here["onepass"], "torch": "9.9.0"},
            {"step": 15, "onepass": "0.0.9", "torch": "9.9.0"},
        ]
    )
    assert whole.other_versions == []


def test_a_finished_run_of_other_versions_is_returned_only_with_anyway(tmp_path, monkeypatch):
    first = run_job(JOB, tmp_path)
    arguments = (
        "run",
        "er",
        "--preset",
        "common",
        "--dataset",
        "synthetic",
        "--batch",
        30,
        "--device",
        "cpu",
        "--json",
    )
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    with untouched(tmp_path):
        refused = onepass(*arguments, "--out", tmp_path, "--resume")
        given = onepass(*arguments, "--out", tmp_path, "--resume", "--anyway")
        alone = onepass(*arguments, "--out", tmp_path / "new", "--anyway")
    assert (refused.status, refused.out) == (2, "")
    assert "9.9.0" in refused.error and "--anyway" in refused.error
    assert given.record == json.loads(json.dumps(first.printed()))
    assert alone.status == 2 and "--resume" in alone.error
