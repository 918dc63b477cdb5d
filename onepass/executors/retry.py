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

FailureKind = Literal["memory", "input", "training", "bug", "killed"]
NO_MEMORY = (TooLargeError, MemoryError, torch.OutOfMemoryError)
USER_ERRORS = (OnepassError, OSError)  # errors that the user can correct
log = logging.getLogger("onepass")


class Failure(NamedTuple):
    """Why a run failed in another process. `error` is the name of the error's class if onepass
    defines it."""

    kind: FailureKind
    why: str
    error: str = ""


def failure_kind(problem: Exception) -> FailureKind:
    """Returns what kind of failure an error is.

    >>> failure_kind(TooLargeError()), failure_kind(OSError()), failure_kind(ZeroDivisionError())
    ('memory', 'input', 'bug')
    """
    if isinstance(problem, NO_MEMORY):
        return "memory"
    if isinstance(problem, USER_ERRORS):
        return "input"
    return "training" if isinstance(problem, TrainingError) else "bug"


def name_and_message(problem: Exception) -> str:
    """Returns an error in one line, with its class: the message of an unexpected error may say
    little without it.

    >>> name_and_message(KeyError("lr"))
    "KeyError: 'lr'"
    """
    return shortened(f"{type(problem).__name__}: {problem}")


class Retries:
    """Gives each failed run at most one second try, from its last checkpoint. The second try always
    resumes, with or without --resume, because the folder is from our own first try.

    Errors that would recur get no second try: those of the user, and training that has diverged. If
    other runs may have left a run too little RAM or GPU memory, its second try runs alone.
    """

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.tried: set[str] = set()
        self.alone: set[str] = set()

    def run_options(self, job: Job) -> RunOptions:
        return replace(self.options, resume=True) if job.folder_name in self.tried else self.options

    def runs_alone(self, job: Job) -> bool:
        return job.folder_name in self.alone

    def should_retry(
        self, job: Job, kind: FailureKind, why: str, *, had_neighbours: bool = False
    ) -> bool:
        """Returns whether to run a failed job again. `had_neighbours`: other runs shared its RAM or
        GPU, so they may have left it too little."""
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
