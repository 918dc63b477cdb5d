"""Queues decide which job runs next. An executor asks its queue whenever it can start a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from onepass.runs.spec import Job

Fits = Callable[[Job], bool]  # whether a job may start beside the runs of this moment


class Queue(Protocol):
    """Gives out jobs by their numbers in the executor's list, each once.

    An executor that can start a job calls `take` at once, and again from time to time. When nothing
    is running, every job fits. If `take` returns None at that moment, the queue is at its end.
    """

    def take(self, fits: Fits) -> int | None:
        """Gives out the next job that may start and that `fits`, and returns its number; None if
        there is no such job now."""

    def put_back(self, index: int) -> None:
        """Puts a failed job back into the queue, for another try."""


class InOrder:
    """Gives out jobs in the order of their list. Later jobs overtake a job that does not fit.

    >>> queue = InOrder([Job("er"), Job("gsa"), Job("er", seed=1)])
    >>> queue.take(lambda job: job.method == "gsa"), queue.take(lambda job: True)
    (1, 0)
    >>> queue.put_back(1)
    >>> [queue.take(lambda job: True) for _ in range(3)]
    [1, 2, None]
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs, self.waiting = jobs, list(range(len(jobs)))

    def take(self, fits: Fits) -> int | None:
        for position, index in enumerate(self.waiting):
            if fits(self.jobs[index]):
                return self.waiting.pop(position)
        return None

    def put_back(self, index: int) -> None:
        self.waiting.insert(0, index)
