"""Several runs at a time, in processes that each run one job after another.

Each worker has a pipe of its own: jobs go in; progress, results and errors come out, and its end
closes it. So a worker that is killed takes its own run with it and no other.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from onepass import engine
from onepass.errors import RunError, TrainingError
from onepass.evaluate import make_ready
from onepass.executors.base import Ended, How, Watch
from onepass.executors.mps import sharing
from onepass.executors.queue import Queue
from onepass.executors.retries import MENDABLE
from onepass.job import Job
from onepass.listeners.progress import Forwarder
from onepass.supplies import Supplies

KILLED = "a run's process was killed (out of memory?); --resume goes on with it"
ERRORS = {"input": RunError, "training": TrainingError, "bug": RuntimeError}
Message = tuple[str, Any]


@dataclass
class Worker:
    """A process, the pipe to it, and the number of the job that it runs."""

    process: BaseProcess
    pipe: Connection
    index: int

    @classmethod
    def begin(cls, index: int, job: Job, how: How) -> Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, os.getpid()))
        with _deaf():
            process.start()
        theirs.close()  # or its end would not be seen here
        worker = cls(process, ours, index)
        worker.give(index, job, how)
        return worker

    def give(self, index: int, job: Job, how: How) -> None:
        self.index = index
        with suppress(OSError):  # it was killed, as the next message will say
            self.pipe.send((job, how))

    def end(self) -> None:
        self.pipe.close()
        self.process.join()


class Processes:
    """A fixed number of workers, each with data and learners of its own."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.supplies = Supplies()

    def check(self, job: Job) -> None:
        """Here, where nothing is run, a learner for a GPU is tried on the CPU: making one on the
        GPU would take memory there for as long as this process lives."""
        stream, learner = job.make(self.supplies.dataset(job))
        if not learner.capturable:
            engine.make(learner.engine, False, torch.device(job.device), ())
        plain = {"device": "cpu", "engine": "eager", "precision": "fp32"}
        chosen = plain if job.device == "cuda" else {}
        make_ready(type(learner)(**{**learner.get_params(), **chosen}), stream)

    def outcomes(
        self, jobs: Sequence[Job], queue: Queue, how: How, watch: Watch
    ) -> Generator[Ended, None, None]:
        workers: list[Worker] = []
        with sharing(jobs[0].device), _ended(workers):
            while True:
                while len(workers) < self.at_once:
                    taken = queue.take(lambda job: True)
                    if taken is None:
                        break
                    workers.append(Worker.begin(taken, jobs[taken], how))
                if not workers:
                    return
                for pipe in connection.wait([worker.pipe for worker in workers]):
                    (worker,) = [one for one in workers if one.pipe is pipe]
                    kind, content = _next(worker)
                    if kind == "progress":
                        watch(worker.index, content)
                        continue
                    index = worker.index
                    taken = None if kind == "killed" else queue.take(lambda job: True)
                    if taken is not None:
                        worker.give(taken, jobs[taken], how)
                    else:
                        workers.remove(worker)
                        worker.end()
                    yield index, content if kind == "result" else _error(kind, jobs[index], content)


def _next(worker: Worker) -> Message:
    try:
        message: Message = worker.pipe.recv()
    except (EOFError, OSError):
        return "killed", KILLED
    return message


def _error(kind: str, job: Job, content: str) -> Exception:
    told = f"{job.folder_name}: {content}" if kind in ("training", "killed") else content
    return ERRORS.get(kind, TrainingError)(told)


@contextmanager
def _ended(workers: list[Worker]) -> Iterator[None]:
    """However this ends, no worker is left behind."""
    try:
        yield
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


@contextmanager
def _deaf() -> Iterator[None]:
    """A worker that starts meanwhile does not hear an interrupt until it says what that means."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---- in a worker


def _work(pipe: Connection, parent: int) -> None:
    """Runs the jobs that come until no more do. An interrupt ends the process at once, and so does
    the end of its parent: whatever it was writing can be resumed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    supplies = Supplies()
    while True:
        try:
            job, how = pipe.recv()
        except EOFError:
            return
        forwarder = Forwarder(lambda progress: pipe.send(("progress", progress)))
        pipe.send(_attempt(job, how, forwarder, supplies))


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _attempt(job: Job, how: How, forwarder: Forwarder, supplies: Supplies) -> Message:
    """Errors travel as text: not every exception can be sent."""
    try:
        return "result", how.run(job, forwarder, supplies)
    except MENDABLE as problem:
        return "input", str(problem)
    except TrainingError as problem:
        return "training", str(problem)
    except Exception:
        return "bug", traceback.format_exc()
