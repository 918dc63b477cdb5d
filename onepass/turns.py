"""Several threads and one learner: who waits, and who is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from onepass.errors import InputError


class Turns:
    """One thread changes the learner at a time; whoever only looks at it waits for its turn."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._turn = threading.RLock()

    @contextmanager
    def change(self) -> Iterator[None]:
        """To learn. A second thread is refused, since the order of batches would be left to
        chance; somebody who is predicting just now is waited for."""
        if not self._changing.acquire(blocking=False):
            raise InputError("this learner is learning already: it takes one batch after another")
        try:
            with self._turn:
                yield
        finally:
            self._changing.release()

    @contextmanager
    def look(self) -> Iterator[None]:
        """To predict or to save: between two steps, never during one."""
        with self._turn:
            yield

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()  # a copy of a learner has turns of its own
