"""One run after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from onepass.executors.base import Ended, How, Watch
from onepass.job import Job
from onepass.listeners.progress import Forwarder
from onepass.result import Result
from onepass.supplies import Supplies


class Here:
    """The learner that is checked is the one that runs, and the data are loaded once."""

    def __init__(self) -> None:
        self.supplies = Supplies()

    def check(self, job: Job) -> None:
        self.supplies.check(job)

    def outcomes(self, jobs: Sequence[Job], how: How, watch: Watch) -> Iterator[Ended]:
        for index, job in enumerate(jobs):
            try:
                outcome: Result | Exception = how.run(
                    job, Forwarder(partial(watch, index)), self.supplies
                )
            except Exception as problem:  # whatever it is, the other runs go on
                outcome = problem
            yield index, outcome
