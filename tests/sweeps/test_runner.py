"""How a sweep handles the ways in which runs end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onepass.base import fileio
from onepass.base.errors import BusyError, DataError
from onepass.executors import Queue, RunOptions
from onepass.executors.serial import Serial
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.sweeps.durations import Durations
from onepass.sweeps.runner import execute_runs
from onepass.sweeps.sweep_file import PlannedRun

JOB = Job("er", "synthetic", batch=60, device="cpu")


class Failing(Serial):
    """An executor whose first run fails with a given error."""

    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self.problems = [problem]

    def outcomes(
        self, jobs: Sequence[Job], queue: Queue, *more: Any
    ) -> Iterator[tuple[int, Result | Exception]]:
        if not self.problems:
            yield from super().outcomes(jobs, queue, *more)
            return
        index = queue.take(lambda job: True)
        assert index is not None
        yield index, self.problems.pop()


def watch_nothing(*_: object) -> None:
    """Watches nothing."""


def endings(problem: Exception, out: Path) -> list[Result | Exception]:
    known = Serial().resources.with_fingerprint(JOB)
    planned, options = [PlannedRun(known, 0)], RunOptions(out, resume=True)
    return [
        ended.outcome
        for ended in execute_runs(planned, options, Failing(problem), Durations([]), watch_nothing)
    ]


def test_a_run_that_another_process_has_just_begun_is_left_to_it(tmp_path: Path) -> None:
    (result,) = endings(BusyError("whatever it says"), tmp_path)
    assert isinstance(result, Result)


def test_an_error_that_only_reads_like_a_busy_folder_is_reported(tmp_path: Path) -> None:
    problem = DataError("a file of it is being run by another process")
    assert endings(problem, tmp_path) == [problem]


def test_a_run_in_another_process_is_refused_as_busy(tmp_path: Path) -> None:
    lock = tmp_path / "run" / ".lock"
    lock.parent.mkdir()
    with (
        fileio.locked_file(lock, wait=False),
        pytest.raises(BusyError, match="run is being run by another process"),
        RunFolder(lock.parent).locked(),
    ):
        pass
