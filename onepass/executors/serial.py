"""The executor that runs one job after another in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from functools import partial

from onepass.base.news import heard_by
from onepass.evaluation.callbacks.progress import Forwarder, Progress
from onepass.executors.base import Outcome, RunOptions, Watch
from onepass.executors.queue import Queue
from onepass.executors.retry import Retries, failure_kind, name_and_message
from onepass.learning.learner import Learner
from onepass.runs.resources import RunResources
from onepass.runs.result import Result
from onepass.runs.spec import Job


class TimeLimitReached(BaseException):
    """Stops a run at the time limit. A BaseException, because an Exception in a listener only drops
    the listener."""


class Serial:
    """Runs jobs one after another. The run of a checked job takes the learner that the check has
    made. Each dataset is loaded once."""

    def __init__(self) -> None:
        self.resources = RunResources()

    def check(self, job: Job) -> Learner:
        return self.resources.prepare(job)

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
                with heard_by(forwarder.hear):
                    outcome: Result | Exception = retries.run_options(job).run(
                        job, forwarder, self.resources
                    )
            except TimeLimitReached:
                return
            except Exception as problem:  # any error ends this run only
                if retries.should_retry(job, failure_kind(problem), name_and_message(problem)):
                    queue.put_back(index)
                    continue
                outcome = problem
            yield index, outcome


def _forward_or_stop(watch: Watch, until: float, index: int, progress: Progress) -> None:
    """Passes the progress of a run on to `watch`. Raises TimeLimitReached, which stops the run, at
    the time `until`."""
    if time.monotonic() >= until:
        raise TimeLimitReached
    watch(index, progress)
