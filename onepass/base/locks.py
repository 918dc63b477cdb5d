"""The lock of a learner that several threads share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from onepass.base.errors import InputError


class LearnerLock:
    """A lock that one thread at a time holds, to learn or to read, in order of arrival. The thread
    that holds it may enter again.

    A plain lock keeps no order: a thread that predicts in a loop could keep a learning thread
    waiting for seconds.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()  # held while a thread learns, or waits to learn
        self._news = threading.Condition()  # notified when the queue changes
        self._queue: deque[int] = deque()  # thread ids; the first one holds the lock
        self._depth = 0  # how often the holder has entered: the lock is reentrant

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Holds the lock for learning, once readers before it have finished. Raises an InputError
        if a thread is learning or waits to learn: the order of batches would be left to chance."""
        if not self._changing.acquire(blocking=False):
            raise InputError("this learner is learning already: give it one batch after another")
        try:
            self._take_turn()
            try:
                yield
            finally:
                self._end_turn()
        finally:
            self._changing.release()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Holds the lock for predicting or saving, once threads before it have finished: between
        two steps, never during one."""
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
        except BaseException:  # an interrupt: the other threads must not wait for this one
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
        return LearnerLock, ()  # a copied or unpickled learner gets a fresh lock
