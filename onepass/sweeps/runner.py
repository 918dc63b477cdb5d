"""The runs of a sweep, carried out: what is finished is left alone, whatever else is done."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from onepass.executors import Executor, RunOptions, Watch
from onepass.runs.folder import BUSY, RunFolder
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.sweeps.durations import Costs, kind_of
from onepass.sweeps.scheduler import Agenda, State, finished, state_of
from onepass.sweeps.sweep_file import Planned

PAUSE = 0.5  # seconds until one looks again how far another process is


class Ended(NamedTuple):
    """A run that has ended: its number, and its result or what went wrong. `elsewhere`: another
    process has run it."""

    number: int
    outcome: Result | Exception
    elsewhere: bool = False


Endings = Generator[Ended, None, None]


@dataclass(frozen=True)
class Entry:
    """A run of a sweep: how far it is, and its result if it has one."""

    planned: Planned
    state: State
    folder: RunFolder
    result: Result | None = None

    @property
    def job(self) -> Job:
        return self.planned.job


def survey(planned: Sequence[Planned], out: Path, lines: Sequence[Result]) -> list[Entry]:
    """How far each run is: in a line of results, wherever that was made, or in its folder."""
    held = {result.identity: result for result in lines if result.identity}
    return [_found(one, RunFolder.of(one.job, out), held) for one in planned]


def _found(one: Planned, folder: RunFolder, held: Mapping[str, Result]) -> Entry:
    if held and (line := held.get(one.job.identity)):
        return Entry(one, "finished", folder, line)
    state, _ = state_of(folder)
    if state == "finished":
        result = finished(folder, one.job)
        return Entry(one, "finished" if result else "to run", folder, result)
    return Entry(one, state, folder)


def check(planned: Sequence[Planned], executor: Executor) -> None:
    """Whatever can be refused is refused before the first run starts: one of each kind will do."""
    first = {kind_of(one.job): one.job for one in reversed(planned)}
    for job in first.values():
        executor.check(job)


def carry_out(
    planned: Sequence[Planned],
    options: RunOptions,
    executor: Executor,
    costs: Costs,
    watch: Watch,
    *,
    until: float | None = None,
) -> Endings:
    """Runs what is not finished, and gives each one's number and what came out as it ends.

    What another process is running is left to it; in the end, if it has finished there, its result
    is as good as ours, and if that process has died, its run goes on here. Nothing starts after the
    time `until`; what is still running then the executor stops.
    """
    left = list(range(len(planned)))
    while left:
        agenda = Agenda([planned[index] for index in left], options.out, costs, until=until)
        for number, outcome in _round(agenda, options, executor, _renumbered(watch, left), until):
            agenda.ended(number)
            if isinstance(outcome, Exception) and BUSY in str(outcome):
                agenda.passed.append(number)
                continue
            if isinstance(outcome, Result):
                costs.learn(outcome)
            yield Ended(left[number], outcome)
        left = [left[number] for number in agenda.passed]
        _wait_for_any([RunFolder.of(planned[index].job, options.out) for index in left], until)
        for index in list(left):
            job = planned[index].job
            if (result := finished(RunFolder.of(job, options.out), job)) is not None:
                left.remove(index)
                yield Ended(index, result, elsewhere=True)


def _round(
    agenda: Agenda, options: RunOptions, executor: Executor, watch: Watch, until: float | None
) -> Generator[tuple[int, Result | Exception], None, None]:
    jobs = [one.job for one in agenda.planned]
    last = math.inf if until is None else until
    with closing(executor.outcomes(jobs, agenda, options, watch, last)) as outcomes:
        yield from outcomes


def _renumbered(watch: Watch, numbers: Sequence[int]) -> Watch:
    return lambda number, progress: watch(numbers[number], progress)


def _wait_for_any(folders: Sequence[RunFolder], until: float | None) -> None:
    """Until another process has finished one of these runs, or has left it, or the time is up."""
    while folders and all(one.is_being_run() for one in folders):
        if until is not None and time.monotonic() >= until:
            return
        time.sleep(PAUSE)
