"""The queue of a search: which run comes next, and what its end means for the trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fast_studies import no_disk_sync

import onepass
from onepass.base.errors import RunError
from onepass.runs.execute import run_job
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.tuning.space import Space
from onepass.tuning.spec import SearchSpec
from onepass.tuning.study import Ending, Study
from onepass.tuning.trial_queue import TrialQueue

JOB = Job("er", "synthetic", batch=60, device="cpu")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_job(JOB, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    no_disk_sync(monkeypatch)
    return Study(tmp_path / "study.db")


def queue(study: Study, space: dict[str, object], total: int, seeds: int = 1) -> TrialQueue:
    found = Space.read(space, onepass.ER, "space.toml")
    return TrialQueue(SearchSpec(JOB, found, "accuracy", seeds), study, total)


def take(trials: TrialQueue) -> int | None:
    return trials.take(lambda job: True)


def test_other_seeds_wait_for_the_first_and_a_trial_is_their_mean(
    study: Study, result: Result
) -> None:
    trials = queue(study, {"lr": {"low": 1e-3, "high": 1e-2}}, total=1, seeds=3)
    assert (take(trials), take(trials)) == (0, None)
    trials.end(0, replace(result, accuracy=30.0))
    assert (take(trials), take(trials), take(trials)) == (1, 2, None)
    assert [job.seed for job in trials.jobs] == [0, 1, 2]
    assert len({str(job.settings) for job in trials.jobs}) == 1
    trials.end(2, replace(result, accuracy=60.0))
    assert study.ending(0) is None
    trials.end(1, replace(result, accuracy=90.0))
    assert study.ending(0) == Ending(60.0)


def test_a_trial_with_the_settings_of_a_running_one_is_not_run_and_ends_like_it(
    study: Study, result: Result
) -> None:
    trials = queue(study, {"loss": ["sum"]}, total=3)
    assert (take(trials), take(trials)) == (0, None)
    assert len(study.trials()) == 3
    again = queue(study, {"loss": ["sum"]}, total=4)  # as if the search had been killed
    assert (take(again), take(again)) == (0, None)
    again.end(0, replace(result, accuracy=70.0))
    assert [study.ending(number) for number in range(4)] == [Ending(70.0)] * 4
    assert take(queue(study, {"loss": ["sum"]}, total=5)) is None
    assert study.ending(4) == Ending(70.0)


def test_a_job_that_does_not_fit_stays_in_the_queue(study: Study) -> None:
    trials = queue(study, {"lr": {"low": 1e-3, "high": 1e-2}}, total=2)
    assert trials.take(lambda job: False) is None
    assert (take(trials), len(study.trials())) == (0, 1)
    trials.put_back(0)
    assert (take(trials), take(trials), take(trials)) == (0, 1, None)


def test_an_error_that_the_settings_did_not_cause_is_raised_and_the_trial_stays(
    study: Study,
) -> None:
    trials = queue(study, {"lr": {"low": 1e-3, "high": 1e-2}}, total=1)
    take(trials)
    with pytest.raises(RunError):
        trials.end(0, RunError("its folder is damaged"))
    assert study.ending(0) is None


def test_one_run_that_fails_ends_its_trial(study: Study, result: Result) -> None:
    trials = queue(study, {"lr": {"low": 1e-3, "high": 1e-2}}, total=1, seeds=3)
    take(trials)
    trials.end(0, result)
    take(trials), take(trials)
    trials.end(1, ZeroDivisionError("by zero"))
    trials.end(2, result)
    assert study.ending(0) == Ending(problem="by zero")
