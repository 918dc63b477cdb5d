"""Trials that are worse than most are stopped; their reports survive a resumption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from command import events
from fast_studies import no_disk_sync
from recording_listeners import Stopped, stop_after

import onepass
from onepass.evaluation.callbacks.audience import Audience
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job
from onepass.tuning.pruning import StoppedEarlyError, TrialRunOptions
from onepass.tuning.space import Space
from onepass.tuning.study import FEWEST_COMPLETE, Ending, Study

SPACE = Space.read({"lr": {"low": 1e-4, "high": 1e-2}}, onepass.ER, "space.toml")
JOB = Job("er", "synthetic", batch=30, every=2, device="cpu")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    no_disk_sync(monkeypatch)
    return Study(tmp_path / "study.db")


def how(study: Study, folder: Path, **options: object) -> TrialRunOptions:
    file = folder / "study.db"
    return TrialRunOptions(folder / "runs", resume=True, study=file, searched=("lr",), **options)  # type: ignore[arg-type]


def whole_trials(study: Study, count: int, value: float) -> None:
    """Adds complete trials with this any-time accuracy at every step."""
    for _ in range(count):
        trial = study.ask(SPACE, seed=0)
        for step in (2, 4, 6):
            study.report(trial.number, step, value)
        study.tell(trial, Ending(value))


@pytest.mark.parametrize(
    ("count", "value", "worth"),
    [
        (FEWEST_COMPLETE, 60.0, False),
        (FEWEST_COMPLETE, 70.0, True),
        (FEWEST_COMPLETE, 80.0, True),
        (FEWEST_COMPLETE - 1, 0.0, True),
    ],
)
def test_a_trial_below_the_median_of_enough_others_is_stopped(
    count: int, value: float, worth: bool, study: Study
) -> None:
    whole_trials(study, count, 70.0)
    stopped = study.ask(SPACE, seed=0)
    study.report(stopped.number, 4, 100.0)
    study.tell(stopped, Ending())  # a stopped trial does not count as a measure
    trial = study.ask(SPACE, seed=0)
    assert study.report(trial.number, 4, value) is worth
    assert study.report(trial.number, 99, value)  # no other trial has a score at this step


@pytest.mark.parametrize(("value", "stops"), [(101.0, True), (0.0, False)])
def test_a_run_that_is_worse_than_others_stops_after_a_quarter(
    value: float, stops: bool, study: Study, tmp_path: Path
) -> None:
    whole_trials(study, FEWEST_COMPLETE, value)
    trial = study.ask(SPACE, seed=0)
    job = replace(JOB, settings=trial.settings)
    if not stops:
        assert how(study, tmp_path).run(job, Audience([]), RunResources()).steps == 20
        return
    with pytest.raises(StoppedEarlyError, match="after 6 steps"):
        how(study, tmp_path).run(job, Audience([]), RunResources())
    assert study.ending(trial.number) == Ending()
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "result.json").exists()


def test_only_the_first_seed_reports(study: Study, tmp_path: Path) -> None:
    whole_trials(study, FEWEST_COMPLETE, 101.0)
    trial = study.ask(SPACE, seed=0)
    other = replace(JOB, settings=trial.settings, seed=1)
    assert how(study, tmp_path).run(other, Audience([]), RunResources()).steps == 20
    assert study.trials()[trial.number].intermediate_values == {}


def test_the_mean_of_all_scores_so_far_is_reported_also_after_a_resumption(
    study: Study, tmp_path: Path
) -> None:
    trial = study.ask(SPACE, seed=0)
    job = replace(JOB, settings=trial.settings)
    with pytest.raises(Stopped):
        how(study, tmp_path, checkpoint=5).run(job, Audience([stop_after(13)]), RunResources())
    result = how(study, tmp_path, checkpoint=5).run(job, Audience([]), RunResources())
    points = events(Path(result.out))
    scores = [100 * sum(point["correct"]) / sum(point["total"]) for point in points]
    reported = study.trials()[trial.number].intermediate_values
    assert list(reported) == [point["step"] for point in points]
    assert list(reported.values()) == pytest.approx(
        [mean(scores[: n + 1]) for n in range(len(scores))]
    )
