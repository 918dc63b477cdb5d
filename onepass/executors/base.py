"""The protocol of executors, and `execute_all`, which runs jobs with one."""

from __future__ import annotations

import logging
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
from onepass.runs.net_inputs import describe_inputs
from onepass.runs.result import Result
from onepass.runs.spec import CheckpointEvery, Job

if TYPE_CHECKING:
    from onepass.evaluation.callbacks import Listener
    from onepass.learning.learner import Learner
    from onepass.runs.resources import RunResources

Watch = Callable[[int, Progress], None]
OnFailure = Callable[[int, Exception], None]
Outcome = tuple[int, Result | Exception]
log = logging.getLogger("onepass")


@dataclass(frozen=True)
class RunOptions:
    """Options for all jobs of an executor. `onepass.runs.execute.run_job` explains them."""

    out: Path
    resume: bool = False
    checkpoint: CheckpointEvery = "auto"
    anyway: bool = False

    def __post_init__(self) -> None:
        expect_type("checkpoint", self.checkpoint, CheckpointEvery)
        if isinstance(self.checkpoint, int) and self.checkpoint < 1:
            raise InputError(f"checkpoint must be at least 1 step, not {self.checkpoint}")

    def is_finished(self, job: Job) -> bool:
        """Returns whether `run` would return the result of an earlier run, without training."""
        return self.resume and RunFolder.of(job, self.out).result_file.exists()

    def run(self, job: Job, listener: Listener, resources: RunResources) -> Result:
        """Runs a job in this process with these options, and returns its result."""
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
    """Runs jobs that a queue gives out."""

    def check(self, job: Job) -> Learner:
        """Raises an error if a job cannot run. Returns the learner, prepared, that it makes for
        this check. The executor may keep it and the dataset, and use them for the run."""

    def outcomes(
        self,
        jobs: Sequence[Job],
        queue: Queue,
        options: RunOptions,
        watch: Watch,
        until: float = math.inf,
    ) -> Generator[Outcome, None, None]:
        """Runs the jobs that the queue gives out, until it has no more. Yields the number of each
        job as it ends, with its result or its error. A job whose error may not recur is first
        tried once more. Calls `watch` with the number and progress of each running job. At the
        time `until` (of `time.monotonic`) all runs are stopped without an outcome; they can resume
        from their last checkpoints."""


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
    """Runs jobs in their folders, and yields the number and result of each as it ends. `queue`
    decides their order; by default they keep the order of the list.

    The call itself checks all jobs, and raises errors that can be found without a run. It logs how
    the inputs of a user's network are made (`describe_inputs`). Later, a job
    that fails does not stop the others. `failed` is called with its number and error at once. When
    all jobs have ended, the first error is raised, with the others as notes. With `fail_fast`, the
    first error stops all.
    """
    remarks: dict[str | None, None] = {}  # an ordered set
    checked: set[str] = set()
    for job in jobs:
        probes.expect_probes(job.probes)
        if not options.resume:
            RunFolder.of(job, options.out).refuse_existing()
        if job.kind not in checked and not options.is_finished(job):
            checked.add(job.kind)
            remarks[describe_inputs(executor.check(job))] = None
    for remark in filter(None, remarks):
        log.warning("%s", remark)
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
