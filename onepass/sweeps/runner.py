"""Finds out which runs of a sweep have finished, and executes the others."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from onepass.base.errors import BusyError
from onepass.executors import Executor, RunOptions, Watch
from onepass.runs.folder import RunFolder
from onepass.runs.net_inputs import describe_inputs
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.runs.status import RunStatus, finished_result, status_of
from onepass.sweeps.durations import Durations, run_kind
from onepass.sweeps.scheduler import Scheduler
from onepass.sweeps.sweep_file import PlannedRun

PAUSE = 0.5  # seconds between two looks at the runs of another process


class EndedRun(NamedTuple):
    """A run that has ended: its index in the list of planned runs, and its result or error.
    `elsewhere` says whether another process ran it."""

    number: int
    outcome: Result | Exception
    elsewhere: bool = False


EndedRuns = Generator[EndedRun, None, None]


@dataclass(frozen=True)
class SurveyedRun:
    """A planned run as it is before the sweep starts: its status, its folder, and its result if it
    has finished."""

    planned: PlannedRun
    state: RunStatus
    folder: RunFolder
    result: Result | None = None

    @property
    def job(self) -> Job:
        return self.planned.job


def survey(planned: Sequence[PlannedRun], out: Path, lines: Sequence[Result]) -> list[SurveyedRun]:
    """Returns the status of each run. A run has finished if one of the results in `lines`, made on
    any machine, is its own. Otherwise its folder below `out` gives the status."""
    held = {result.identity: result for result in lines if result.identity}
    return [_found(run, RunFolder.of(run.job, out), held) for run in planned]


def _found(run: PlannedRun, folder: RunFolder, held: Mapping[str, Result]) -> SurveyedRun:
    if held and (line := held.get(run.job.identity)):
        return SurveyedRun(run, "finished", folder, line)
    state, _ = status_of(folder)
    if state == "finished":
        result = finished_result(folder, run.job)
        # Without a result the folder holds another run. Running the job then raises the error.
        return SurveyedRun(run, "finished" if result else "to run", folder, result)
    return SurveyedRun(run, state, folder)


def validate_runs(planned: Sequence[PlannedRun], executor: Executor) -> list[str]:
    """Raises the error of the first job that cannot run. Jobs that differ only in their seeds need
    one check. Returns how the inputs of the user's networks are made."""
    first = {run_kind(run.job): run.job for run in reversed(planned)}  # the first one stays last
    remarks = [describe_inputs(executor.check(job)) for job in first.values()]
    return list(dict.fromkeys(filter(None, remarks)))


def execute_runs(
    planned: Sequence[PlannedRun],
    options: RunOptions,
    executor: Executor,
    durations: Durations,
    watch: Watch,
    *,
    until: float = math.inf,
) -> EndedRuns:
    """Executes the planned runs, and yields each as it ends.

    A run that another process is running is left to that process. If it finishes there, its result
    is yielded too. If that process dies, the run resumes here. At the time `until` the executor
    stops all runs, and nothing starts afterwards.
    """
    left = list(range(len(planned)))
    while left:
        scheduler = Scheduler(
            [planned[index] for index in left], options.out, durations, until=until
        )
        for number, outcome in _round(
            scheduler, options, executor, _renumbered(watch, left), until
        ):
            scheduler.ended(number)
            if isinstance(outcome, BusyError):
                scheduler.passed_over.append(number)
                continue
            if isinstance(outcome, Result):
                durations.learn(outcome)
            yield EndedRun(left[number], outcome)
        left = [left[number] for number in scheduler.passed_over]
        _wait_for_any([RunFolder.of(planned[index].job, options.out) for index in left], until)
        for index in list(left):
            job = planned[index].job
            if (result := finished_result(RunFolder.of(job, options.out), job)) is not None:
                left.remove(index)
                yield EndedRun(index, result, elsewhere=True)


def _round(
    scheduler: Scheduler, options: RunOptions, executor: Executor, watch: Watch, until: float
) -> Generator[tuple[int, Result | Exception], None, None]:
    jobs = [run.job for run in scheduler.planned]
    with closing(executor.outcomes(jobs, scheduler, options, watch, until)) as outcomes:
        yield from outcomes


def _renumbered(watch: Watch, numbers: Sequence[int]) -> Watch:
    return lambda number, progress: watch(numbers[number], progress)


def _wait_for_any(folders: Sequence[RunFolder], until: float) -> None:
    """Waits while other processes run all of the folders, at most until the time `until`."""
    while folders and all(folder.is_being_run() for folder in folders):
        if time.monotonic() >= until:
            return
        time.sleep(PAUSE)
