"""Which job comes next: whoever can start one asks a queue at that moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from onepass.runs.spec import Job

Fits = Callable[[Job], bool]


class Queue(Protocol):
    """Jobs by their numbers in the list that is executed, each given out once.

    An executor asks whenever it has a place free, and now and then while it has one. When nothing
    is running every job fits, so None is then taken for the end: nothing will come any more.
    """

    def take(self, fits: Fits) -> int | None:
        """The next job that may start now and for which there is room now, which `fits` says; None
        if there is none."""

    def put_back(self, index: int) -> None:
        """A job that was taken has failed and is worth another try: `take` may give it again."""


class InOrder:
    """The jobs in the order of their list; one for which there is no room is overtaken.

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
        for place, index in enumerate(self.waiting):
            if fits(self.jobs[index]):
                return self.waiting.pop(place)
        return None

    def put_back(self, index: int) -> None:
        self.waiting.insert(0, index)
