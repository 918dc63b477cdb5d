"""The queue that decides which run of a sweep comes next."""

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
    """A queue of planned runs. Without the time limit `until` they keep their order.

    With a limit, only runs that are expected to end in the remaining time start: those of the first
    priority before others, and among them the longest first. A kind of run that was never measured
    starts with one run, a *trial*, before the others of its priority. Further runs of that kind
    wait until the trial has ended.

    Runs that another process is running, or has finished meanwhile, are skipped; `passed_over` has
    their numbers.
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
        self.trials: dict[int, RunKind] = {}  # trials that have not ended, by number
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
        """Called when a run has ended, with a result or an error."""
        self.trials.pop(index, None)

    def _in_turn(self) -> list[int]:
        """Returns the numbers of the runs that may start now, the next one first."""
        if self.until == math.inf:
            return list(self.waiting)
        left, tried = self.until - self.now(), set(self.trials.values())
        expected: dict[RunKind, float | None] = {}
        turns: list[tuple[int, float, int]] = []
        for position, index in enumerate(self.waiting):
            kind, run = self.kinds[index], self.planned[index]
            if kind not in expected:
                expected[kind] = self.durations.expected(run.job)
            seconds = expected[kind]
            if seconds is None and kind not in tried and left > 0:
                tried.add(kind)
                # minus infinity sorts a trial before all measured runs of its priority
                turns.append((run.priority, -math.inf, position))
            elif seconds is not None and seconds <= left:
                turns.append((run.priority, -seconds, position))
        return [self.waiting[position] for _, _, position in sorted(turns)]
