"""Which run of a sweep comes next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from onepass.runs.folder import RunFolder
from onepass.runs.spec import Job
from onepass.runs.status import finished_result
from onepass.sweeps.durations import Durations, RunKind, run_kind
from onepass.sweeps.sweep_file import PlannedRun


class Scheduler:
    """Gives out the jobs of a list, by their numbers: in their order, or, if the time is limited,
    only what is expected to end in the time that is left, of each priority the longest first. Of
    runs that nobody has measured one is started as a trial, before the others of its priority, and
    those of its kind wait for it.

    A run that another process is at, or has finished meanwhile, is passed over: `passed` has the
    numbers of these.
    """

    def __init__(
        self,
        planned: Sequence[PlannedRun],
        out: Path,
        durations: Durations,
        *,
        until: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.planned, self.out, self.durations = planned, out, durations
        self.until, self.now = until, now
        self.kinds = [run_kind(run.job) for run in planned]
        self.waiting = list(range(len(planned)))
        self.trials: dict[int, RunKind] = {}  # runs that are being measured
        self.passed_over: list[int] = []

    def take(self, fits: Callable[[Job], bool]) -> int | None:
        for index in self._in_turn():
            job = self.planned[index].job
            if not fits(job):
                continue
            self.waiting.remove(index)
            folder = RunFolder.of(job, self.out)
            if folder.is_being_run() or finished_result(folder, job):
                self.passed_over.append(index)
                continue
            if self.durations.expected(job) is None:
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
        if self.until == math.inf:
            return list(self.waiting)
        left, tried = self.until - self.now(), set(self.trials.values())
        expected: dict[RunKind, float | None] = {}
        turns: list[tuple[int, float, int]] = []
        for place, index in enumerate(self.waiting):
            kind, run = self.kinds[index], self.planned[index]
            if kind not in expected:
                expected[kind] = self.durations.expected(run.job)
            seconds = expected[kind]
            if seconds is None and kind not in tried and left > 0:
                tried.add(kind)
                turns.append((run.priority, -math.inf, place))
            elif seconds is not None and seconds <= left:
                turns.append((run.priority, -seconds, place))
        return [self.waiting[place] for _, _, place in sorted(turns)]
