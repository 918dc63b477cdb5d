"""The main function of a worker process, which runs jobs from a pipe one after another."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

from onepass.base.errors import error_name
from onepass.base.news import heard_by
from onepass.evaluation.callbacks.progress import Forwarder
from onepass.executors.base import RunOptions
from onepass.executors.processes import ram
from onepass.executors.retry import Failure, failure_kind, name_and_message
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job


def work(pipe: Connection) -> None:
    """Runs jobs from a pipe until it closes. An interrupt, or the end of the parent, ends the
    process at once; a run can be resumed after either.

    It receives a job and its RunOptions at a time. It sends messages: a word, its content, and the
    current `RamUse`. The words are `progress` with a `Progress`, and at the end of a run `result`
    with a `Result`, or `failed` with a `Failure`.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    resources = RunResources()
    while True:
        try:
            job, options = pipe.recv()
        except EOFError:
            return
        _run(pipe, job, options, resources)


def _run(pipe: Connection, job: Job, options: RunOptions, resources: RunResources) -> None:
    def send(word: str, content: Any) -> None:
        pipe.send((word, content, ram.ram_use(job.device)))

    ram.reset_ram_peak(job.device)
    send(*attempt(job, options, Forwarder(partial(send, "progress")), resources))


def _exit_with_parent() -> None:
    """Waits for the end of the parent, then ends this process, even in the middle of a step."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # sys.exit would end this thread only


def attempt(
    job: Job, options: RunOptions, forwarder: Forwarder, resources: RunResources
) -> tuple[str, Any]:
    """Runs a job, and returns its last message as `work` lists it, without the `RamUse`. Errors are
    sent as text, because not every exception can be pickled."""
    try:
        with heard_by(forwarder.hear):
            return "result", options.run(job, forwarder, resources)
    except Exception as problem:
        kind = failure_kind(problem)
        why = _bug_message(problem) if kind == "bug" else str(problem)
        return "failed", Failure(kind, why, error_name(problem))


def _bug_message(problem: Exception) -> str:
    """Returns an unexpected error in one line, with its notes; one of them says where its traceback
    is (`runs.log.log_run`). Returns the traceback itself if there are no notes."""
    notes = getattr(problem, "__notes__", None)
    return "; ".join([name_and_message(problem), *notes]) if notes else traceback.format_exc()
