"""A slot of the pool: a place for one run at a time, and the worker process that runs it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from onepass.executors.base import RunOptions
from onepass.executors.processes import gpus
from onepass.executors.processes.gpus import Gpu
from onepass.executors.processes.ram import RamUse, count_oom_kills
from onepass.executors.processes.worker import work
from onepass.executors.retry import Failure
from onepass.runs.spec import Job

NOTHING = RamUse()
KILLED = "its process was killed (out of memory?)"
BY_KILL = -getattr(signal, "SIGKILL", 9)  # an exit code; Windows does not define the signal


@dataclass
class Worker:
    """A worker process, the pipe to it, and its RAM or GPU memory use at its last message."""

    process: BaseProcess
    pipe: Connection
    taken: RamUse = NOTHING

    @classmethod
    def start(cls, gpu: Gpu) -> Worker:
        """Starts a worker process that sees only this GPU, and returns it with its pipe."""
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,))
        with _ignoring_interrupts(), gpus.bound_to(gpu):
            process.start()
        theirs.close()  # while this process holds it open, the worker's end would go unnoticed
        return cls(process, ours)

    def stop(self) -> None:
        """Closes the pipe, which ends an idle worker, and waits for the end of the process."""
        self.pipe.close()
        self.process.join()


@dataclass
class Running:
    """A running job, its number, and how many processes the kernel had killed for lack of RAM when
    it started; None if unknown."""

    index: int
    job: Job
    killed_before: int | None


class Slot:
    """Holds one run at a time, on `gpu`. Its worker stays from one run to the next while there are
    jobs. `had_neighbours` is whether other runs may have taken RAM or GPU memory from the latest
    run."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.worker: Worker | None = None
        self.running: Running | None = None
        self.had_neighbours = False

    @property
    def taken(self) -> RamUse:
        return self.worker.taken if self.worker else NOTHING

    def start(self, index: int, job: Job, options: RunOptions, *, had_neighbours: bool) -> None:
        self.worker = self.worker or Worker.start(self.gpu)
        self.running, self.had_neighbours = Running(index, job, count_oom_kills()), had_neighbours
        with suppress(OSError):  # a killed worker is noticed at the next `receive`
            # The worker sees only its own GPU, so the device has no number there.
            self.worker.pipe.send((replace(job, device=job.device_kind), options))

    def receive(self) -> tuple[str, Any]:
        """Waits for the next message of the worker, and returns its word and content, which
        `worker.work` lists. A worker that has ended counts as the message `failed`, with a Failure
        of kind `killed`."""
        assert self.worker is not None
        try:
            word, content, self.worker.taken = self.worker.pipe.recv()
        except (EOFError, OSError):
            return "failed", Failure("killed", self._death())
        return word, content

    def _death(self) -> str:
        """Stops the dead worker, and returns a text that says what ended it. Clears
        `had_neighbours` unless the kernel may have killed the worker for lack of RAM. That is so if
        SIGKILL ended it, and the kernel's count of such kills has grown since the run started, or
        is unknown."""
        assert self.worker is not None and self.running is not None
        process = self.worker.process
        self.stop_worker()
        if process.exitcode != BY_KILL:
            self.had_neighbours = False
            return f"its process ended with status {process.exitcode}"
        now, before = count_oom_kills(), self.running.killed_before
        self.had_neighbours &= now is None or now != before
        return KILLED

    def stop_worker(self) -> None:
        """Stops the worker, which must be idle or dead. Does nothing without one."""
        if self.worker:
            self.worker.stop()
            self.worker = None


@contextmanager
def stopping_workers(slots: list[Slot]) -> Iterator[None]:
    """Terminates all workers at the end of the `with` block, even after an error, and even if they
    are still running jobs."""
    try:
        yield
    finally:
        processes = [slot.worker.process for slot in slots if slot.worker]
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Makes a worker that starts in the `with` block ignore interrupts until it sets its own
    handler. A new process inherits that from this one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python sets handlers in the main thread only
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
