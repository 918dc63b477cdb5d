"""Lines about the progress of long work: what works tells them, and who shows or records them hears
them. Nobody hears by default; then the logger `onepass` still gets each line, at level INFO."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

from onepass.base.text import format_duration

LINES = 20  # at most so many lines about the same work
PAUSE = 10.0  # the least seconds from one of them to the next
log = logging.getLogger("onepass")


class Line(NamedTuple):
    """A line and its kind: `steps` says how far a run is, as a progress bar does; `work` how far
    long work within a step or a score is; a `note` is said once."""

    text: str
    kind: Literal["steps", "work", "note"]


Hear = Callable[[Line], object]
_hearers: ContextVar[tuple[Hear, ...]] = ContextVar("hearers", default=())


@contextmanager
def heard_by(hear: Hear) -> Iterator[None]:
    """Calls `hear` with each line that is told in the `with` block, besides those who hear
    already."""
    token = _hearers.set((*_hearers.get(), hear))
    try:
        yield
    finally:
        _hearers.reset(token)


def tell(line: Line) -> None:
    """Passes a line on to all who hear."""
    for hear in _hearers.get():
        hear(line)
    log.info("%s", line.text)


class Pace:
    """Decides when a line about long work is due: after each twentieth of the work, but at most
    once in ten seconds. `done` of `total` parts were done before."""

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self.first, self.told = total, done, done
        self.began = self.time = time.monotonic()

    def is_due(self, done: int) -> bool:
        """Returns whether a line is due, which then counts as told. None is due at the end."""
        if (done - self.told) * LINES < self.total or done >= self.total:
            return False
        now = time.monotonic()
        if now - self.time < PAUSE:
            return False
        self.told, self.time = done, now
        return True

    def left(self, done: int) -> str:
        """Returns the time that the rest will take, if it is as fast as what was done here."""
        seconds = (time.monotonic() - self.began) / (done - self.first) * (self.total - done)
        return f"{format_duration(seconds)} left"


def told_passes(count: int, work: str) -> Iterator[int]:
    """Yields the numbers of passes, from 0, and tells now and then how many are done.

    >>> list(told_passes(3, "a fit"))
    [0, 1, 2]
    """
    pace = Pace(count)
    for done in range(count):
        if pace.is_due(done):
            tell(Line(f"{work}: pass {done} of {count}, {pace.left(done)}", "work"))
        yield done
