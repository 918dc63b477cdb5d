"""Room for one run at a time, and the process that runs it."""

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
BY_KILL = -getattr(signal, "SIGKILL", 9)  # an exit code; Windows has no such signal


@dataclass
class Worker:
    """A process, the pipe to it, and the memory that it took when it was last heard."""

    process: BaseProcess
    pipe: Connection
    taken: RamUse = NOTHING

    @classmethod
    def start(cls, gpu: Gpu) -> Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,))
        with _ignoring_interrupts(), gpus.bound_to(gpu):
            process.start()
        theirs.close()  # or its end would not be seen here
        return cls(process, ours)

    def stop(self) -> None:
        self.pipe.close()
        self.process.join()


@dataclass
class Running:
    """A job at work, by its number, and how many processes the kernel had killed before."""

    index: int
    job: Job
    killed_before: int | None


class Slot:
    """On a GPU, if there are any. Its worker stays from one run to the next, as long as there is
    something to run. `had_neighbours`: others are, or were, beside this one."""

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
        with suppress(OSError):  # it was killed, as the next message will say
            self.worker.pipe.send(
                (replace(job, device=job.device_kind), options)
            )  # it sees one GPU

    def receive(self) -> tuple[str, Any]:
        """The next message of its worker; its end is one too."""
        assert self.worker is not None
        try:
            word, content, self.worker.taken = self.worker.pipe.recv()
        except (EOFError, OSError):
            return "failed", Failure("killed", self._death())
        return word, content

    def _death(self) -> str:
        """What ended the worker. That others were beside its run matters only if the kernel was in
        want of memory; where it does not tell, it may have been."""
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
        if self.worker:
            self.worker.stop()
            self.worker = None


@contextmanager
def stopping_workers(slots: list[Slot]) -> Iterator[None]:
    """However this ends, no worker is left behind."""
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
    """A worker that starts meanwhile does not hear an interrupt until it says what that means."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
