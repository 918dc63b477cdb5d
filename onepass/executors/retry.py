"""Decides which failed runs get a second try."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Literal, NamedTuple

import torch

from onepass.base.errors import OnepassError, TooLargeError, TrainingError
from onepass.base.text import shortened
from onepass.executors.base import RunOptions
from onepass.runs.spec import Job

# memory: too little RAM or GPU memory; input: an error that the user can correct; training:
# learning has diverged; killed: the worker process has ended; bug: any other error
FailureKind = Literal["memory", "input", "training", "bug", "killed"]
NO_MEMORY = (TooLargeError, MemoryError, torch.OutOfMemoryError)
USER_ERRORS = (OnepassError, OSError)  # errors that the user can correct
log = logging.getLogger("onepass")


class Failure(NamedTuple):
    """The reason why a run failed in another process, in words (`why`). `error` is the name of the
    error's class in `onepass.base.errors`; "" if it is of another class."""

    kind: FailureKind
    why: str
    error: str = ""


def failure_kind(problem: Exception) -> FailureKind:
    """Returns the kind of failure that an error is.

    >>> failure_kind(TooLargeError()), failure_kind(OSError()), failure_kind(ZeroDivisionError())
    ('memory', 'input', 'bug')
    """
    if isinstance(problem, NO_MEMORY):
        return "memory"
    if isinstance(problem, USER_ERRORS):
        return "input"
    return "training" if isinstance(problem, TrainingError) else "bug"


def name_and_message(problem: Exception) -> str:
    """Returns the class and the message of an error in one line. The message of an unexpected error
    may say little without the class.

    >>> name_and_message(KeyError("lr"))
    "KeyError: 'lr'"
    """
    return shortened(f"{type(problem).__name__}: {problem}")


class Retries:
    """Gives each failed run at most one second try, from its last checkpoint. The second try always
    resumes, with or without --resume, because the folder is from our own first try.

    Errors that would recur get no second try: those of the user, training that has diverged, and
    too little memory for a run that was alone. If other runs may have left a run too little RAM or
    GPU memory, no other run is beside its second try.
    """

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.tried: set[str] = set()
        self.alone: set[str] = set()

    def run_options(self, job: Job) -> RunOptions:
        """Returns the options for a job's next try."""
        return replace(self.options, resume=True) if job.folder_name in self.tried else self.options

    def runs_alone(self, job: Job) -> bool:
        """Returns whether a job may run only when no other does, on the same GPU or in RAM."""
        return job.folder_name in self.alone

    def should_retry(
        self, job: Job, kind: FailureKind, why: str, *, had_neighbours: bool = False
    ) -> bool:
        """Returns whether to run a failed job again; if so, records that and logs a warning.
        `had_neighbours`: other runs may have left it too little RAM or GPU memory."""
        name = job.folder_name
        may_succeed = had_neighbours if kind == "memory" else kind in ("bug", "killed")
        if name in self.tried or not may_succeed:
            return False
        self.tried.add(name)
        if had_neighbours:
            self.alone.add(name)
        when = ", when no other is running" if had_neighbours else ""
        log.warning("%s: %s; it is tried once more%s", name, why, when)
        return True
