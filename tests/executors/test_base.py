"""Behaviour that all executors share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import onepass
from onepass.base.errors import InputError, RunError, UnknownNameError
from onepass.executors import InOrder, Queue, RunOptions, choose_executor, execute_all
from onepass.executors.serial import Serial
from onepass.runs.result import Result
from onepass.runs.spec import Job

JOBS = [Job("er", "synthetic", seed=seed) for seed in range(3)]


class Stub:
    """An executor with prepared outcomes, which refuses one job."""

    def __init__(self, *outcomes: object, refuses: Job | None = None) -> None:
        self.given, self.refuses, self.ran, self.ended = outcomes, refuses, False, False

    def check(self, job: Job) -> onepass.Learner:
        if job == self.refuses:
            raise InputError("no")
        return onepass.ER()

    def outcomes(
        self, jobs: Sequence[Job], queue: Queue, how: RunOptions, watch: object
    ) -> Iterator[tuple]:
        self.ran = True
        try:
            yield from enumerate(self.given)
        finally:
            self.ended = True


def result() -> Result:
    return Result(**dict.fromkeys(Result.__dataclass_fields__))


@pytest.mark.parametrize("failure", [RunError("first"), RuntimeError("first")])
def test_the_first_failure_is_raised_when_all_have_ended_and_names_the_others(
    failure: Exception, tmp_path: Path
) -> None:
    outcomes = execute_all(JOBS, RunOptions(tmp_path), Stub(failure, result(), RunError("second")))
    assert next(outcomes)[0] == 1
    with pytest.raises(type(failure), match="first") as raised:
        next(outcomes)
    assert raised.value.__notes__ == ["Also: second"]


def test_fail_fast_stops_all_runs_at_the_first_failure(tmp_path: Path) -> None:
    executor, failures = Stub(result(), RunError("first"), result(), RunError("second")), []
    outcomes = execute_all(
        JOBS,
        RunOptions(tmp_path),
        executor,
        failed=lambda *what: failures.append(what),
        fail_fast=True,
    )
    assert next(outcomes)[0] == 0
    with pytest.raises(RunError, match="first") as raised:
        next(outcomes)
    assert executor.ended
    assert failures == [(1, raised.value)]
    assert not hasattr(raised.value, "__notes__")


def test_invalid_jobs_are_refused_before_the_first_run(tmp_path: Path) -> None:
    (tmp_path / JOBS[2].folder_name).mkdir()
    strange = [replace(JOBS[0], probes=("balanse",))]
    for jobs, executor, error in (
        (JOBS[:2], Stub(refuses=JOBS[0]), InputError),
        (JOBS, Stub(), RunError),
        (strange, Stub(), UnknownNameError),
    ):
        with pytest.raises(error):
            execute_all(jobs, RunOptions(tmp_path), executor)
        assert not executor.ran


def test_a_job_that_has_a_seed_of_its_own_is_checked_too(tmp_path: Path) -> None:
    other = replace(JOBS[1], memory=7)
    executor = Stub(refuses=other)
    with pytest.raises(InputError, match="no"):
        execute_all([JOBS[0], other], RunOptions(tmp_path), executor)
    assert not executor.ran
    once = Stub(refuses=JOBS[1])  # jobs that differ only in their seeds need one check
    execute_all(JOBS, RunOptions(tmp_path), once)


def test_a_finished_run_is_not_prepared_again(tmp_path: Path) -> None:
    folder = tmp_path / JOBS[0].folder_name
    folder.mkdir()
    (folder / "result.json").touch()
    list(execute_all(JOBS[:1], RunOptions(tmp_path, resume=True), Stub(refuses=JOBS[0])))


def test_a_bug_in_one_run_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = onepass.ER.step

    def failing(learner: onepass.ER, x: object, y: object) -> object:
        if learner.seed == 0:
            raise ValueError("a bug")
        return step(learner, x, y)

    monkeypatch.setattr(onepass.ER, "step", failing)
    jobs = [Job("er", "synthetic", seed=seed, device="cpu") for seed in (0, 1)]
    ended = execute_all(jobs, RunOptions(tmp_path, checkpoint=None), Serial())
    assert next(ended)[0] == 1
    with pytest.raises(ValueError, match="a bug"):
        next(ended)


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "in a process of its own"])
def test_at_the_time_limit_every_executor_stops_its_runs_and_starts_no_more(
    isolated: bool, tmp_path: Path
) -> None:
    slow = {"mix": "512"}  # half a minute of steps
    jobs = [Job("gsa", batch=1, every=1, settings=slow, seed=seed, device="cpu") for seed in (0, 1)]
    executor = choose_executor(jobs, isolated=isolated)
    began = time.monotonic()
    ended = executor.outcomes(jobs, InOrder(jobs), RunOptions(tmp_path), lambda *_: None, began + 1)
    assert list(ended) == []
    assert 1 <= time.monotonic() - began < 10
    assert not list(tmp_path.glob("*/result.json"))
    assert not (tmp_path / jobs[1].folder_name).exists()
