"""The executor that has several runs at a time, in worker processes.

Each worker runs one job after another. It has a pipe of its own: jobs go in; progress, results and
errors come out. A killed worker closes only its own pipe, so only its own run fails.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from multiprocessing import connection

from onepass.base import devices
from onepass.base.errors import TrainingError, rebuild_error
from onepass.evaluation.loop import prepare_for_stream
from onepass.executors.base import Outcome, RunOptions, Watch
from onepass.executors.processes import gpus as gpu_placement
from onepass.executors.processes.cuda_mps import cuda_mps_service
from onepass.executors.processes.gpus import Gpu
from onepass.executors.processes.ram import RamBudget, RamUse
from onepass.executors.processes.slot import Slot, stopping_workers
from onepass.executors.queue import Fits, Queue
from onepass.executors.retry import Failure, Retries
from onepass.learning import execution
from onepass.learning.learner import Learner
from onepass.learning.network_learner import NetworkLearner
from onepass.runs.folder import RunFolder
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job

PAUSE = 1.0  # seconds until a free slot asks the queue again
# Kinds of failure that the user can correct, and the class that reports them if the error in the
# worker was not of a class of onepass
USER_ERRORS = {"memory": "TooLargeError", "input": "RunError"}


class Processes:
    """Runs jobs in at most `at_once` workers, each with data and learners of its own. A run waits
    while others leave it too little RAM or memory of its GPU. With no other beside it, it starts in
    any case."""

    def __init__(
        self,
        at_once: int,
        ram_budget: RamBudget | None = None,
        gpus: Sequence[str] | None = None,
    ) -> None:
        self.at_once = at_once
        self.ram_budget = ram_budget or RamBudget()
        self.gpus = gpus
        self.resources = RunResources()

    def check(self, job: Job) -> Learner:
        """Raises an error if a job cannot run; returns its learner. One for a GPU is made on the
        CPU here, because initialising CUDA would take GPU memory for the life of this process."""
        stream, learner = job.make(self.resources.dataset(job))
        # The copy below gets the engine `eager`, so an engine that this learner cannot have raises
        # its error here.
        if isinstance(learner, NetworkLearner) and not learner.traits.capturable:
            execution.make_engine(learner.engine, False, devices.resolve_device(job.device), ())
        plain = {"device": "cpu", "engine": "eager", "precision": "fp32"}
        settings = learner.get_params()
        if job.device_kind == "cuda":
            settings |= {name: plain[name] for name in plain.keys() & settings.keys()}
        learner = type(learner)(**settings)
        prepare_for_stream(learner, stream)
        self.ram_budget.guess(job, stream.dataset, learner)
        return learner

    def outcomes(
        self,
        jobs: Sequence[Job],
        queue: Queue,
        options: RunOptions,
        watch: Watch,
        until: float = math.inf,
    ) -> Generator[Outcome, None, None]:
        if not jobs:
            return
        retries = Retries(options)
        slots = [
            Slot(gpu)
            for gpu in gpu_placement.spread_over_gpus(self.at_once, self._gpus_for(jobs[0]))
        ]
        with cuda_mps_service(jobs[0].device_kind), stopping_workers(slots):
            while time.monotonic() < until and self._fill(slots, jobs, queue, retries):
                for slot in _ready_slots(slots, until):
                    yield from self._handle_message(slot, queue, retries, watch)

    def _gpus_for(self, job: Job) -> Sequence[Gpu]:
        if job.device_kind != "cuda":
            return [None]
        gpus = self.gpus or gpu_placement.visible_gpus()
        if job.device != "cuda":
            return [gpus[int(job.device.removeprefix("cuda:"))]]
        return gpus or [None]

    def _fill(self, slots: list[Slot], jobs: Sequence[Job], queue: Queue, retries: Retries) -> bool:
        """Starts all jobs that may start now, and stops idle workers. Returns whether any job is
        running."""
        free = [slot for slot in slots if slot.running is None]
        while free:
            busy = [slot for slot in slots if slot.running]
            number = gpu_placement.least_loaded(
                [other.gpu for other in free], [other.gpu for other in busy]
            )
            slot = free.pop(number)
            beside = [other for other in busy if other.gpu == slot.gpu]
            index = queue.take(self._fits(slot, beside, retries))
            if index is None:
                slot.stop_worker()  # an idle worker would only hold RAM or GPU memory
                continue
            job = jobs[index]
            if not beside and not self._has_room(slot, [], retries)(job):
                for other in free:  # idle workers still hold RAM or GPU memory that this job needs
                    other.stop_worker()
            for other in beside:
                other.had_neighbours = True
            slot.start(index, job, retries.run_options(job), had_neighbours=bool(beside))
        return any(slot.running for slot in slots)

    def _fits(self, slot: Slot, beside: Sequence[Slot], retries: Retries) -> Fits:
        """Returns the test of whether a job may start in a slot, beside the runs in others. Without
        others any job may; beside a run that must be alone, none."""
        others = [(other.running.job, other.taken) for other in beside if other.running]
        if not others:
            return lambda job: True
        if any(retries.runs_alone(job) for job, _ in others):
            return lambda job: False
        return self._has_room(slot, others, retries)

    def _has_room(self, slot: Slot, others: Sequence[tuple[Job, RamUse]], retries: Retries) -> Fits:
        """Returns the test of whether the RAM or GPU memory left by others is enough for a job that
        need not run alone."""
        room = self.ram_budget.room(slot.gpu, others, slot.taken)

        def has_room(job: Job) -> bool:
            enough = room is None or self.ram_budget.expected(job) <= room
            return enough and not retries.runs_alone(job)

        return has_room

    def _handle_message(
        self, slot: Slot, queue: Queue, retries: Retries, watch: Watch
    ) -> Generator[Outcome, None, None]:
        """Handles the next message of a worker. Yields the outcome of its run, if the run has ended
        and gets no second try."""
        running = slot.running
        assert running is not None
        index, job = running.index, running.job
        word, content = slot.receive()
        if word == "progress":
            watch(index, content)
            return
        slot.running = None
        if word == "result":
            self.ram_budget.record(job, slot.taken)
            yield index, content
            return
        failure: Failure = content
        kind, why = failure.kind, failure.why
        if kind == "killed":
            RunFolder.of(job, retries.options.out).add_to_log(why)
        if retries.should_retry(
            job, kind, why, had_neighbours=slot.had_neighbours and kind != "bug"
        ):
            queue.put_back(index)
        else:
            yield index, _error(failure, job)


def _ready_slots(slots: Sequence[Slot], until: float) -> list[Slot]:
    """Waits for messages, and returns the slots whose workers have sent one. Returns an empty list
    if none has after `PAUSE` seconds, or at the time `until`."""
    pipes = [slot.worker.pipe for slot in slots if slot.worker and slot.running]
    ready = connection.wait(pipes, max(0, min(PAUSE, until - time.monotonic())))
    return [slot for slot in slots if slot.worker and slot.worker.pipe in ready]


def _error(failure: Failure, job: Job) -> Exception:
    """Returns the error to report for a failed run: that of the worker if the user can correct it,
    otherwise a TrainingError."""
    kind, why, error = failure
    if kind in USER_ERRORS:
        return rebuild_error(error or USER_ERRORS[kind], why)
    tried = " (tried twice)" if kind in ("bug", "killed") else ""
    more = (
        "; `onepass run --resume`, or the same sweep again, continues it"
        if kind == "killed"
        else ""
    )
    return TrainingError(f"{job.folder_name}{tried}: {why}{more}")
