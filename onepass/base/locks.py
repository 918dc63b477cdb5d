"""Several threads and one learner: who waits, and who is refused."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from onepass.base.errors import InputError


class LearnerLock:
    """Lets one thread at a time learn or look, in the order in which they came.

    The order matters: a plain lock goes to whoever is quickest, and a thread that predicts in a
    loop would keep one that learns waiting for seconds.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._news = threading.Condition()
        self._queue: deque[int] = deque()  # the first one has its turn
        self._depth = 0  # how often the one whose turn it is has asked for it

    @contextmanager
    def learning(self) -> Iterator[None]:
        """To learn. A second thread is refused, since the order of batches would be left to
        chance; whoever is predicting just now is waited for."""
        if not self._changing.acquire(blocking=False):
            raise InputError("this learner is learning already: it takes one batch after another")
        try:
            self._take_turn()
            try:
                yield
            finally:
                self._end_turn()
        finally:
            self._changing.release()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """To predict or to save: between two steps, never during one."""
        self._take_turn()
        try:
            yield
        finally:
            self._end_turn()

    def _take_turn(self) -> None:
        me = threading.get_ident()
        with self._news:
            if me not in self._queue:
                self._queue.append(me)
            if self._queue[0] != me:
                self._wait_for_turn(me)
            self._depth += 1

    def _wait_for_turn(self, me: int) -> None:
        try:
            self._news.wait_for(lambda: self._queue[0] == me)
        except BaseException:  # an interrupt: nobody may wait for this thread
            self._queue.remove(me)
            self._news.notify_all()
            raise

    def _end_turn(self) -> None:
        with self._news:
            self._depth -= 1
            if not self._depth:
                self._queue.popleft()
                if self._queue:
                    self._news.notify_all()

    def __reduce__(self) -> tuple[type[LearnerLock], tuple[()]]:
        return LearnerLock, ()  # a copy of a learner has turns of its own
