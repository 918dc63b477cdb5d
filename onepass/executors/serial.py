"""One run after another, in this process."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

from onepass.evaluation.callbacks.progress import Forwarder
from onepass.executors.base import Ended, How, Watch
from onepass.executors.queue import Queue
from onepass.executors.retry import Retries, in_a_line, kind_of
from onepass.runs.resources import Supplies
from onepass.runs.result import Result
from onepass.runs.spec import Job


class Here:
    """The learner that is checked is the one that runs, and the data are loaded once."""

    def __init__(self) -> None:
        self.supplies = Supplies()

    def check(self, job: Job) -> None:
        self.supplies.check(job)

    def outcomes(
        self, jobs: Sequence[Job], queue: Queue, how: How, watch: Watch
    ) -> Generator[Ended, None, None]:
        retries = Retries(how)
        while (index := queue.take(lambda job: True)) is not None:
            job, forwarder = jobs[index], Forwarder(partial(watch, index))
            try:
                outcome: Result | Exception = retries.how_for(job).run(
                    job, forwarder, self.supplies
                )
            except Exception as problem:  # whatever it is, the other runs go on
                if retries.again(job, kind_of(problem), in_a_line(problem)):
                    queue.put_back(index)
                    continue
                outcome = problem
            yield index, outcome
