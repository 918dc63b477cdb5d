"""A run's result, of methods that train or count beside their steps."""

from dataclasses import dataclass

import pytest
from following import Stopped, stop_after
from teaching import Tidy, register

from onepass import Finetune
from onepass.job import Job
from onepass.report import tables
from onepass.run import run


@dataclass(kw_only=True, eq=False)
class Late(Finetune):
    """Says that it trains when scores are asked for."""

    trains_to_score = True


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    register(monkeypatch, Tidy, Late)


def test_a_runs_result_has_what_was_spent_and_a_stop_at_a_tasks_end_changes_no_bit(tmp_path):
    job = Job("test-tidy", "synthetic", device="cpu")
    whole = run(job, tmp_path / "whole")
    for step in (12, 30):  # the first task's last step, and one inside the third
        with pytest.raises(Stopped):
            run(job, tmp_path / "broken", resume=True, checkpoint=6, listeners=[stop_after(step)])
    result = run(job, tmp_path / "broken", resume=True)
    points = len((tmp_path / "whole" / job.folder_name / "events.jsonl").read_text().splitlines())
    assert whole.images_beside_steps == {
        "task ends": {"trained": 5 * 4, "scored": 5},
        "scores": {"trained": 0, "scored": 3 * points},
    }
    for key in ("images_beside_steps", "state_sha256", "accuracy_matrix"):
        assert getattr(result, key) == getattr(whole, key), key


def test_scoring_at_the_end_only_is_told_from_forgetting_nothing(tmp_path):
    result = run(Job("test-late", "synthetic", device="cpu"), tmp_path)
    assert result.forgetting is None
    assert result.forgetting_all_tasks is None
    assert result.accuracy_matrix[:-1] == [[None] * 5] * 4
    assert None not in result.accuracy_matrix[-1]
    assert result.anytime_accuracy is None
    assert result.accuracy == pytest.approx(result.mean_task_accuracy)
    (row,) = tables.summarise([result])
    assert row.forgetting is None
    header, (cells,) = tables.grid([row])
    assert len(header) == len(cells)

    whole = run(Job("test-late", "synthetic", device="cpu", every=30), tmp_path)
    assert whole.forgetting >= 0
    assert whole.params_sha256 == result.params_sha256
