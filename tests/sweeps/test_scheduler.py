"""The order of a sweep's runs: by position, remaining time and other processes; and the expected
durations of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.base import fileio
from onepass.runs.execute import run_job
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.sweeps.durations import Durations
from onepass.sweeps.scheduler import Scheduler
from onepass.sweeps.sweep_file import PlannedRun

LONG, SHORT, TINY = Job("gsa"), Job("er"), Job("finetune")


class Known(Durations):
    """Seconds by method; None for unmeasured methods."""

    def __init__(self, **seconds: float) -> None:
        super().__init__([])
        self.by_method = seconds

    def expected(self, job: Job) -> float | None:
        return self.by_method.get(job.method)


class Clock:
    """A clock that moves only when a test sets it."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_job(Job("er", "synthetic", device="cpu"), tmp_path_factory.mktemp("runs"))


def scheduler(
    jobs: Sequence[Job], out: Path, durations: Durations, until: float = 100
) -> Scheduler:
    return Scheduler([PlannedRun(job, 0) for job in jobs], out, durations, until=until, now=Clock())


def all_of(scheduler: Scheduler) -> list[int]:
    taken = []
    while (index := scheduler.take(lambda job: True)) is not None:
        taken.append(index)
    return taken


def test_without_a_limit_runs_keep_their_order_and_overtake_one_that_does_not_fit(
    tmp_path: Path,
) -> None:
    queue = scheduler([SHORT, LONG, TINY], tmp_path, Known(), until=math.inf)
    assert queue.take(lambda job: job.method != "er") == 1
    queue.put_back(1)
    assert all_of(queue) == [1, 0, 2]


def test_the_longest_run_that_fits_into_the_time_comes_first_and_others_never(
    tmp_path: Path,
) -> None:
    durations = Known(finetune=10, er=60, gsa=101)
    queue = scheduler([TINY, SHORT, LONG], tmp_path, durations)
    assert all_of(queue) == [1, 0]
    queue = scheduler([TINY, SHORT, LONG], tmp_path, durations)
    queue.now.time = 50
    assert all_of(queue) == [0]
    queue = scheduler([TINY, SHORT, LONG], tmp_path, durations)
    queue.now.time = 95
    assert all_of(queue) == []


def test_a_more_urgent_run_comes_first_however_short_it_is(tmp_path: Path) -> None:
    planned = [PlannedRun(SHORT, 1), PlannedRun(TINY, 0), PlannedRun(replace(TINY, seed=1), 0)]
    durations = Known(finetune=10, er=60)
    assert all_of(Scheduler(planned, tmp_path, durations, until=100, now=Clock())) == [1, 2, 0]


def test_one_unmeasured_run_is_tried_first_and_others_of_its_kind_wait(
    tmp_path: Path,
) -> None:
    """When it has ended, its kind is measured; if it failed, the next run is tried."""
    durations = Known(er=60)
    queue = scheduler([SHORT, LONG, replace(LONG, seed=1)], tmp_path, durations)
    assert queue.take(lambda job: True) == 1
    assert queue.take(lambda job: True) == 0
    assert queue.take(lambda job: True) is None
    queue.ended(1)
    assert queue.take(lambda job: True) == 2
    queue = scheduler([LONG, replace(LONG, seed=1)], tmp_path, durations)
    assert queue.take(lambda job: True) == 0
    durations.by_method["gsa"] = 101
    queue.ended(0)
    assert queue.take(lambda job: True) is None


def test_runs_that_another_process_runs_or_has_finished_are_passed_over(synthetic: Result) -> None:
    done = Job("er", "synthetic", device="cpu")
    running, left = replace(done, seed=1), replace(done, seed=2)
    out = Path(synthetic.out).parent
    (out / running.folder_name).mkdir()
    queue = scheduler([done, running, left], out, Known(), until=math.inf)
    with fileio.locked_file(out / running.folder_name / ".lock", wait=False):
        assert queue.take(lambda job: True) == 2
    assert queue.passed_over == [0, 1]


# ---- how long runs take


def test_another_seed_is_expected_to_take_as_long_as_recent_runs_of_its_kind(
    synthetic: Result,
) -> None:
    times = [900.0, 1.0, 2.0, 6.0]
    measured = [replace(synthetic, seconds=t, scoring_seconds=1, capture_seconds=2) for t in times]
    job = Job("er", "synthetic", seed=5, device="cpu")
    assert Durations(measured).expected(job) == pytest.approx(3 + 3)


def test_another_kind_is_expected_to_take_time_in_proportion_to_its_images(
    synthetic: Result,
) -> None:
    """er trains on 10 stream images and 64 of the memory; mir scores 640 more, at a third of the
    cost."""
    durations = Durations([replace(synthetic, seconds=74.0, scoring_seconds=0, capture_seconds=0)])
    job = Job("finetune", "synthetic", device="cpu")
    assert durations.expected(job) == pytest.approx(10)
    assert durations.expected(replace(job, method="mir")) == pytest.approx(74 + 640 / 3, rel=0.2)
    half = replace(job, method="er", settings={"replay": "27"})
    assert durations.expected(half) == pytest.approx(37)


def test_runs_of_the_same_method_take_precedence_in_an_estimate(synthetic: Result) -> None:
    plain = {"scoring_seconds": 0.0, "capture_seconds": 0.0}
    er = replace(synthetic, seconds=74.0, **plain)
    gsa = replace(synthetic, seconds=740.0, method="gsa", **plain)
    job = Job("gsa", "synthetic", memory=7, device="cpu")
    assert Durations([gsa, er]).expected(job) == pytest.approx(740, rel=0.01)


def test_an_unmeasured_stream_counts_as_the_longest_of_its_data(
    synthetic: Result,
) -> None:
    tail = {"stream": "long-tail", "rho": 100.0, "tasks": 5, "batch": 10}
    quarter = {"steps": synthetic.steps // 4, "seconds": synthetic.seconds / 4}
    whole = replace(synthetic, scoring_seconds=0.0, capture_seconds=0.0)
    short = replace(whole, stream="long-tail", stream_settings=tail, **quarter)
    held_out = replace(short, stream_settings=whole.stream_settings, validation=0.75)
    job = Job("er", "synthetic", memory=7, device="cpu")
    for measured in ([whole, short, held_out], [held_out, short, whole]):
        durations = Durations(measured)
        assert durations.expected(job) == pytest.approx(whole.seconds, rel=0.01)
        cut = replace(job, batch=5, tasks=2, settings={"replay": "32"})
        assert durations.expected(cut) == pytest.approx(whole.seconds, rel=0.01)
        for like in ({"stream": "long-tail:rho=100"}, {"validation": 0.75}):
            expected = durations.expected(replace(job, **like))
            assert expected == pytest.approx(short.seconds, rel=0.05)
        other = replace(job, stream="long-tail:rho=50")
        assert durations.expected(other) == pytest.approx(whole.seconds, rel=0.01)


def test_there_is_no_estimate_from_other_data_or_another_device(synthetic: Result) -> None:
    durations = Durations([synthetic])
    assert durations.expected(Job("er", "digits", device="cpu")) is None
    assert durations.expected(Job("er", "synthetic", device="cuda")) is None
    old = replace(synthetic, batch=0)
    assert Durations([old]).expected(Job("er", "synthetic", device="cpu")) is not None
    assert Durations([old]).expected(Job("gsa", "synthetic", device="cpu")) is None
