"""Which runs that failed are tried again."""

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
USER_ERRORS = (OnepassError, OSError)  # by the user
log = logging.getLogger("onepass")


class Failure(NamedTuple):
    """Tells why a run failed in another process; `error` is the class of the error if that is one
    of ours."""

    kind: FailureKind
    why: str
    error: str = ""


def failure_kind(problem: Exception) -> FailureKind:
    """Returns what sort of failure it is.

    >>> failure_kind(TooLargeError()), failure_kind(OSError()), failure_kind(ZeroDivisionError())
    ('memory', 'input', 'bug')
    """
    if isinstance(problem, NO_MEMORY):
        return "memory"
    if isinstance(problem, USER_ERRORS):
        return "input"
    return "training" if isinstance(problem, TrainingError) else "bug"


def name_and_message(problem: Exception) -> str:
    """With its name: of an error that nobody expected the words alone may say nothing.

    >>> name_and_message(KeyError("lr"))
    "KeyError: 'lr'"
    """
    return shortened(f"{type(problem).__name__}: {problem}")


class Retries:
    """A run that fails gets a second chance, and goes on after its last checkpoint then: by that
    time its folder is our own, whether the command said --resume or not.

    What would only fail again gets none: what the user can mend, and training that has diverged. A
    run that may have found no memory beside others is tried again when it is alone.
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
        hopeful = had_neighbours if kind == "memory" else kind in ("bug", "killed")
        if name in self.tried or not hopeful:
            return False
        self.tried.add(name)
        if had_neighbours:
            self.alone.add(name)
        when = ", when no other is running" if had_neighbours else ""
        log.warning("%s: %s; it is tried once more%s", name, why, when)
        return True
