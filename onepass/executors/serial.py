"""One run after another, in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from functools import partial

from onepass.evaluation.callbacks.progress import Forwarder, Progress
from onepass.executors.base import Outcome, RunOptions, Watch
from onepass.executors.queue import Queue
from onepass.executors.retry import Retries, failure_kind, in_a_line
from onepass.runs.resources import Supplies
from onepass.runs.result import Result
from onepass.runs.spec import Job


class TimeLimitReached(BaseException):
    """Stops a run."""


class Serial:
    """The learner that is checked is the one that runs, and the data are loaded once."""

    def __init__(self) -> None:
        self.supplies = Supplies()

    def check(self, job: Job) -> None:
        self.supplies.check(job)

    def outcomes(
        self,
        jobs: Sequence[Job],
        queue: Queue,
        options: RunOptions,
        watch: Watch,
        until: float = math.inf,
    ) -> Generator[Outcome, None, None]:
        retries = Retries(options)
        while time.monotonic() < until and (index := queue.take(lambda job: True)) is not None:
            job, forwarder = jobs[index], Forwarder(partial(_tell, watch, until, index))
            try:
                outcome: Result | Exception = retries.options_for(job).run(
                    job, forwarder, self.supplies
                )
            except TimeLimitReached:
                return
            except Exception as problem:  # whatever it is, the other runs go on
                if retries.again(job, failure_kind(problem), in_a_line(problem)):
                    queue.put_back(index)
                    continue
                outcome = problem
            yield index, outcome


def _tell(watch: Watch, until: float, index: int, progress: Progress) -> None:
    """Passes on how far a run is, or stops it if its time is up."""
    if time.monotonic() >= until:
        raise TimeLimitReached
    watch(index, progress)
