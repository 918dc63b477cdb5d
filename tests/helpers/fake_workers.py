"""Worker processes replaced by threads that follow a script, so that a test decides the timing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pytest

from onepass.executors.processes import slot
from onepass.executors.processes.gpus import VISIBLE_DEVICES
from onepass.executors.processes.ram import RamUse
from onepass.executors.retry import Failure, FailureKind
from onepass.runs.result import Result
from onepass.runs.spec import Job

Script = Callable[[Job, str | None], tuple[Any, ...]]
KILLED = ("killed",)


def finished(job: Job, taken: RamUse | None = None) -> tuple[Any, ...]:
    """Returns the message of a run that has finished."""
    nothing = dict.fromkeys(Result.__dataclass_fields__)
    return "result", Result(**{**nothing, "seed": job.seed}), taken or RamUse()


def failed(kind: FailureKind) -> tuple[Any, ...]:
    return "failed", Failure(kind, "no luck"), RamUse()


class FakeContext:
    """Replaces multiprocessing's context: each process is a thread that answers jobs by a script.

    The script is given the job and the GPU that the process would see.
    """

    def __init__(self, script: Script) -> None:
        self.script: Script = script
        self.all: list[FakeWorker] = []

    @property
    def alive(self) -> int:
        return sum(worker.thread.is_alive() for worker in self.all)

    def Pipe(self) -> tuple[Connection, Connection]:
        return Pipe()

    def Process(self, target: object, args: tuple[Connection, int]) -> FakeWorker:
        self.all.append(FakeWorker(self.script, args[0]))
        return self.all[-1]


class FakeWorker:
    def __init__(self, script: Script, pipe: Connection) -> None:
        self.script, self.exitcode = script, 0
        self.pipe = os.dup(pipe.fileno())  # the parent closes its own
        self.thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self.gpu = os.environ.get(VISIBLE_DEVICES)
        self.thread.start()

    def _work(self) -> None:
        with Connection(self.pipe) as pipe:
            while True:
                try:
                    job, _ = pipe.recv()
                    message = self.script(job, self.gpu)
                    if message == KILLED:
                        self.exitcode = -signal.SIGKILL
                        return
                    pipe.send(message)
                except (EOFError, OSError):
                    return

    def terminate(self) -> None:
        pass

    def join(self) -> None:
        self.thread.join(10)


def use_fake_workers(monkeypatch: pytest.MonkeyPatch, script: Script) -> FakeContext:
    workers = FakeContext(script)
    monkeypatch.setattr(slot, "get_context", lambda kind: workers)
    return workers
