"""What a sweep has still to do, and which run comes next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from onepass.base.errors import CheckpointError, RunError
from onepass.runs.execute import compare
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.sweeps.durations import Costs, Kind, kind_of
from onepass.sweeps.sweep_file import Planned

State = Literal["finished", "to resume", "to run", "being run", "damaged"]
FILES = ("result.json", "events.jsonl", "checkpoint.pt")


def state_of(folder: RunFolder) -> tuple[State, str]:
    """How far a run is, and what is wrong with its folder if that is damaged."""
    return ("being run", "") if folder.is_being_run() else _state(folder)


def set_aside(folder: RunFolder) -> tuple[str, Path] | None:
    """Moves a damaged folder out of the way, whole, to a name that says so: what was wrong, and
    where it is now. None if it is damaged no longer: another process was here before."""
    try:
        with folder.locked():
            state, problem = _state(folder)
            return (problem, folder.set_aside()) if state == "damaged" else None
    except RunError:
        if state_of(folder)[0] == "damaged":
            raise
        return None


def _state(folder: RunFolder) -> tuple[State, str]:
    try:
        described, result = folder.description(), folder.result()
        if problem := _damage(folder, described is not None, result):
            return "damaged", problem
        if result is not None:
            return "finished", ""
        return ("to run" if folder.load_checkpoint() is None else "to resume"), ""
    except (RunError, CheckpointError) as problem:
        return "damaged", str(problem)


def _damage(folder: RunFolder, described: bool, result: Result | None) -> str:
    """What no file says alone."""
    if not described:
        left = any((folder.path / name).exists() for name in FILES)
        return f"{folder.run_file} is missing" if left else ""
    if result is not None and not folder.has_all_points(result):
        return f"{folder.events_file} lacks points of its run"
    return ""


def finished(folder: RunFolder, job: Job) -> Result | None:
    """The result of a run that has come to its end; not if the folder holds another run, or is
    damaged, as whoever runs it will say."""
    try:
        described, result = folder.description(), folder.result()
        if described is not None and result is not None:
            compare(folder, described, job)
            return result
    except RunError:
        pass
    return None


class Agenda:
    """Gives out the jobs of a list, by their numbers: in their order, or, if the time is limited,
    only what is expected to end in the time that is left, of each priority the longest first. Of
    runs that nobody has measured one is started as a trial, before the others of its priority, and
    those of its kind wait for it.

    A run that another process is at, or has finished meanwhile, is passed over: `passed` has the
    numbers of these.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        out: Path,
        costs: Costs,
        *,
        until: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.planned, self.out, self.costs = planned, out, costs
        self.until, self.now = until, now
        self.kinds = [kind_of(one.job) for one in planned]
        self.waiting = list(range(len(planned)))
        self.trials: dict[int, Kind] = {}  # runs that are being measured
        self.passed: list[int] = []

    def take(self, fits: Callable[[Job], bool]) -> int | None:
        for index in self._in_turn():
            job = self.planned[index].job
            if not fits(job):
                continue
            self.waiting.remove(index)
            folder = RunFolder.of(job, self.out)
            if folder.is_being_run() or finished(folder, job):
                self.passed.append(index)
                continue
            if self.costs.expected(job) is None:
                self.trials[index] = self.kinds[index]
            return index
        return None

    def put_back(self, index: int) -> None:
        self.ended(index)
        self.waiting.insert(0, index)

    def ended(self, index: int) -> None:
        """A run has ended, well or not."""
        self.trials.pop(index, None)

    def _in_turn(self) -> list[int]:
        if self.until is None:
            return list(self.waiting)
        left, tried = self.until - self.now(), set(self.trials.values())
        expected: dict[Kind, float | None] = {}
        turns: list[tuple[int, float, int]] = []
        for place, index in enumerate(self.waiting):
            kind, one = self.kinds[index], self.planned[index]
            if kind not in expected:
                expected[kind] = self.costs.expected(one.job)
            seconds = expected[kind]
            if seconds is None and kind not in tried and left > 0:
                tried.add(kind)
                turns.append((one.priority, -math.inf, place))
            elif seconds is not None and seconds <= left:
                turns.append((one.priority, -seconds, place))
        return [self.waiting[place] for _, _, place in sorted(turns)]
