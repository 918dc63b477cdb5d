"""What every executor has to do, and the one function that uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onepass import probes
from onepass.errors import OnepassError
from onepass.job import Job
from onepass.listeners import Listener
from onepass.listeners.progress import Progress
from onepass.listeners.recorder import CheckpointEvery
from onepass.record import RunFolder
from onepass.result import Result
from onepass.run import run
from onepass.supplies import Supplies

MENDABLE = (OnepassError, OSError)  # by the user
Watch = Callable[[int, Progress], None]
Ended = tuple[int, Result | Exception]


@dataclass(frozen=True)
class How:
    """How each job is run; see `onepass.run.run`."""

    out: Path
    resume: bool = False
    checkpoint: CheckpointEvery = "auto"
    anyway: bool = False

    def is_finished(self, job: Job) -> bool:
        return self.resume and RunFolder.of(job, self.out).result_file.exists()

    def run(self, job: Job, listener: Listener, supplies: Supplies) -> Result:
        return run(
            job,
            self.out,
            resume=self.resume,
            anyway=self.anyway,
            checkpoint=self.checkpoint,
            listeners=[listener],
            supplies=supplies,
        )


class Executor(Protocol):
    """A place where runs run."""

    def check(self, job: Job) -> None:
        """Refuses what cannot be run; what was made for that may serve the run."""

    def outcomes(self, jobs: Sequence[Job], how: How, watch: Watch) -> Iterator[Ended]:
        """Runs every job, and gives the number of each, as it ends, with its result or with what
        went wrong. `watch` is told how far each is."""


def execute_all(
    jobs: Sequence[Job],
    how: How,
    executor: Executor,
    watch: Watch = lambda index, progress: None,
) -> Iterator[tuple[int, Result]]:
    """Runs jobs in their folders, and yields each one's number and result as it ends.

    Everything that can be refused is refused at once, before the first run starts. Afterwards a job
    that fails does not stop the others; its error is raised when all have ended.
    """
    for job in jobs:
        probes.check(job.probes)
        if not how.resume:
            RunFolder.of(job, how.out).refuse_existing()
        if job.seed == jobs[0].seed and not how.is_finished(job):  # other seeds differ in no more
            executor.check(job)
    return _results(executor.outcomes(jobs, how, watch))


def _results(outcomes: Iterator[Ended]) -> Iterator[tuple[int, Result]]:
    failures: list[Exception] = []
    for index, outcome in outcomes:
        if isinstance(outcome, Result):
            yield index, outcome
        else:
            failures.append(outcome)
    if failures:
        first, *others = failures
        for other in others:
            first.add_note(f"Also: {other}")
        raise first
