"""What every executor has to do, and the one function that uses them."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from onepass.base.errors import InputError
from onepass.base.settings import expect_type
from onepass.evaluation import probes
from onepass.evaluation.callbacks.progress import Progress
from onepass.executors.queue import InOrder, Queue
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result
from onepass.runs.spec import CheckpointEvery, Job

if TYPE_CHECKING:
    from onepass.evaluation.callbacks import Listener
    from onepass.runs.resources import RunResources

Watch = Callable[[int, Progress], None]
OnFailure = Callable[[int, Exception], None]
Outcome = tuple[int, Result | Exception]


@dataclass(frozen=True)
class RunOptions:
    """How each job is run; see `onepass.runs.execute.run_job`."""

    out: Path
    resume: bool = False
    checkpoint: CheckpointEvery = "auto"
    anyway: bool = False

    def __post_init__(self) -> None:
        expect_type("checkpoint", self.checkpoint, CheckpointEvery)
        if isinstance(self.checkpoint, int) and self.checkpoint < 1:
            raise InputError(f"checkpoint must be at least 1 step, not {self.checkpoint}")

    def is_finished(self, job: Job) -> bool:
        return self.resume and RunFolder.of(job, self.out).result_file.exists()

    def run(self, job: Job, listener: Listener, resources: RunResources) -> Result:
        from onepass.runs.execute import run_job

        return run_job(
            job,
            self.out,
            resume=self.resume,
            anyway=self.anyway,
            checkpoint=self.checkpoint,
            listeners=[listener],
            resources=resources,
        )


class Executor(Protocol):
    """A place where runs run."""

    def check(self, job: Job) -> None:
        """Refuses what cannot be run; what was made for that may serve the run."""

    def outcomes(
        self,
        jobs: Sequence[Job],
        queue: Queue,
        options: RunOptions,
        watch: Watch,
        until: float = math.inf,
    ) -> Generator[Outcome, None, None]:
        """Runs what the queue gives until it gives no more. Yields the number of each job, as it
        ends, with its result or with what went wrong, after a second try where that may help.
        `watch` is told how far each is. At the time `until` (of `time.monotonic`) whatever still
        runs is stopped without an outcome; it can go on from its last checkpoint."""


def execute_all(
    jobs: Sequence[Job],
    options: RunOptions,
    executor: Executor,
    watch: Watch = lambda index, progress: None,
    *,
    queue: Queue | None = None,
    failed: OnFailure = lambda index, problem: None,
    fail_fast: bool = False,
) -> Iterator[tuple[int, Result]]:
    """Runs jobs in their folders, and yields each one's number and result as it ends. `queue` says
    which comes next; by default they come in their order.

    Everything that can be refused is refused at once, before the first run starts. Afterwards a job
    that fails does not stop the others: `failed` is told at once, and the first error is raised
    when all have ended. With `fail_fast` it ends them.
    """
    for job in jobs:
        probes.expect_probes(job.probes)
        if not options.resume:
            RunFolder.of(job, options.out).refuse_existing()
        if job.seed == jobs[0].seed and not options.is_finished(
            job
        ):  # other seeds differ in no more
            executor.check(job)
    outcomes = executor.outcomes(jobs, queue or InOrder(jobs), options, watch)
    return _results(outcomes, failed, fail_fast)


def _results(
    outcomes: Generator[Outcome, None, None], failed: OnFailure, fail_fast: bool
) -> Iterator[tuple[int, Result]]:
    failures: list[Exception] = []
    with closing(outcomes):
        for index, outcome in outcomes:
            if isinstance(outcome, Result):
                yield index, outcome
                continue
            failures.append(outcome)
            failed(index, outcome)
            if fail_fast:
                break
    if failures:
        first, *others = failures
        for other in others:
            first.add_note(f"Also: {other}")
        raise first
