"""One run after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from onepass.errors import TrainingError
from onepass.executors.base import MENDABLE, How, Outcome, Watch
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

    def outcomes(self, jobs: Sequence[Job], how: How, watch: Watch) -> Iterator[Outcome]:
        for index, job in enumerate(jobs):
            try:
                outcome: Result | Exception = how.run(
                    job, Forwarder(partial(watch, index)), self.supplies
                )
            except (*MENDABLE, TrainingError) as problem:
                outcome = problem
            yield index, outcome
