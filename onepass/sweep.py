"""Many jobs, several at a time, each in a process of its own.

On a GPU the processes share the card through CUDA's multi-process service (MPS) where it is
installed: their kernels then run side by side instead of taking turns. The small steps of one run
leave most of a large card idle, so several runs together finish far sooner.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from onepass.errors import OnepassError, RunError, TrainingError
from onepass.evaluate import Point, Tick
from onepass.job import Job, execute

RUNS_ON_A_GPU = 8
HEARTBEAT = 0.2
MENDABLE = (OnepassError, OSError)  # by the user
Watch = Callable[[int, Tick, int], None]
Answer = tuple[str, Any]


def fitting(wanted: int | None, jobs: Sequence[Job]) -> int:
    """How many jobs to run at once: as many as wanted, or as are fast, but never more than there
    are cores for their threads."""
    first = jobs[0]
    cores = max(1, (os.cpu_count() or 1) // first.threads)
    useful = RUNS_ON_A_GPU if first.device == "cuda" else cores
    return min(wanted or useful, cores, len(jobs))


def execute_all(
    jobs: Sequence[Job],
    out: Path,
    *,
    at_once: int,
    resume: bool = False,
    checkpoint: int | None = 500,
    watch: Watch = lambda index, tick, steps: None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Runs jobs in their folders below `out` and yields each one's number and result as it ends.

    `watch` is told how far each is. A job that fails does not stop the others; its error is raised
    when all have ended.
    """
    if at_once == 1:
        yield from _one_by_one(jobs, out, resume, checkpoint, watch)
        return
    context = get_context("spawn")
    news = context.Queue()
    with sharing(jobs[0]), _pool(at_once, context, news) as pool:
        with _deaf():
            pending = {
                pool.submit(_work, index, job, out, resume, checkpoint): index
                for index, job in enumerate(jobs)
            }
        yield from _collect(pending, news, watch)


def _one_by_one(
    jobs: Sequence[Job], out: Path, resume: bool, checkpoint: int | None, watch: Watch
) -> Iterator[tuple[int, dict[str, Any]]]:
    failures: list[Exception] = []
    for index, job in enumerate(jobs):

        def tell(tick: Tick, steps: int, index: int = index) -> None:
            watch(index, tick, steps)

        try:
            yield index, execute(job, out, resume=resume, checkpoint=checkpoint, watch=tell)
        except (*MENDABLE, TrainingError) as problem:
            failures.append(problem)
    _tell(failures)


def _collect(
    pending: dict[Future[Answer], int], news: Any, watch: Watch
) -> Iterator[tuple[int, dict[str, Any]]]:
    failures: list[Exception] = []
    while pending:
        done, _ = wait(pending, timeout=HEARTBEAT, return_when=FIRST_COMPLETED)
        with suppress(queue.Empty):
            while True:
                watch(*news.get_nowait())
        for future in done:
            index = pending.pop(future)
            kind, answer = _answer(future)
            if kind == "result":
                yield index, answer
            else:
                known = {"input": RunError, "training": TrainingError}
                failures.append(known.get(kind, RuntimeError)(answer))
    _tell(failures)


def _tell(failures: Sequence[Exception]) -> None:
    for first in failures[:1]:
        for other in failures[1:]:
            first.add_note(f"Also: {other}")
        raise first


def _answer(future: Future[Answer]) -> Answer:
    try:
        return future.result()
    except BrokenProcessPool:
        return "training", "a run's process was killed (out of memory?); --resume goes on with it"


def _work(index: int, job: Job, out: Path, resume: bool, checkpoint: int | None) -> Answer:
    """In a process of its own. Errors travel as text: not every exception can be sent."""
    told = 0.0

    def watch(tick: Tick, steps: int) -> None:
        nonlocal told
        if isinstance(tick, Point) or time.monotonic() - told > HEARTBEAT:
            told = time.monotonic()
            _NEWS.put((index, tick, steps))

    try:
        result = execute(job, out, resume=resume, checkpoint=checkpoint, watch=watch)
    except MENDABLE as problem:
        return "input", str(problem)
    except TrainingError as problem:
        return "training", str(problem)
    except Exception:
        return "bug", traceback.format_exc()
    return "result", result


_NEWS: Any = None


def _begin(news: Any, parent: int) -> None:
    """An interrupt ends the process at once, and so does the end of its parent: whatever it was
    writing can be resumed."""
    global _NEWS  # noqa: PLW0603 - how a pool hands something to its workers
    _NEWS = news
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def _pool(workers: int, context: Any, news: Any) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(workers, context, _begin, (news, os.getpid()))
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):  # shutting down would forget them
            process.terminate()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def _deaf() -> Iterator[None]:
    """Workers that start meanwhile do not hear an interrupt until `_begin` says what it means."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def sharing(job: Job) -> Iterator[None]:
    """A multi-process service of our own, unless there is no GPU, no such program, or one that the
    user has started."""
    control = shutil.which("nvidia-cuda-mps-control")
    if job.device != "cuda" or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        places = {name: folder for name in names if name not in os.environ}
        os.environ.update(places)
        started = subprocess.run([control, "-d"], capture_output=True, check=False).returncode == 0
        try:
            yield
        finally:
            if started:
                subprocess.run([control], input=b"quit\n", capture_output=True, check=False)
            for name in places:
                del os.environ[name]
