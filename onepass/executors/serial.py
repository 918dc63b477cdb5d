"""One run after another, in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from functools import partial

from onepass.evaluation.callbacks.progress import Forwarder, Progress
from onepass.executors.base import Outcome, RunOptions, Watch
from onepass.executors.queue import Queue
from onepass.executors.retry import Retries, failure_kind, name_and_message
from onepass.runs.resources import RunResources
from onepass.runs.result import Result
from onepass.runs.spec import Job


class TimeLimitReached(BaseException):
    """Stops a run."""


class Serial:
    """The learner that is checked is the one that runs, and the data are loaded once."""

    def __init__(self) -> None:
        self.resources = RunResources()

    def check(self, job: Job) -> None:
        self.resources.prepare(job)

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
            job, forwarder = jobs[index], Forwarder(partial(_forward_or_stop, watch, until, index))
            try:
                outcome: Result | Exception = retries.run_options(job).run(
                    job, forwarder, self.resources
                )
            except TimeLimitReached:
                return
            except Exception as problem:  # whatever it is, the other runs go on
                if retries.should_retry(job, failure_kind(problem), name_and_message(problem)):
                    queue.put_back(index)
                    continue
                outcome = problem
            yield index, outcome


def _forward_or_stop(watch: Watch, until: float, index: int, progress: Progress) -> None:
    """Passes on how far a run is, or stops it if its time is up."""
    if time.monotonic() >= until:
        raise TimeLimitReached
    watch(index, progress)
