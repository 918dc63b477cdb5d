"""Ctrl-C while modules are imported, which takes a second or two, most of it torch's."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """An interrupt inside is a KeyboardInterrupt as ever, whatever the code that it happened to
    reach has made of it (at the end of the imports, if that was nothing); if nobody catches it, the
    program ends with one line instead of that place in somebody else's code."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = []

    def interrupt(*_: object) -> None:
        came.append(True)
        raise KeyboardInterrupt

    def unraisable(problem: sys.UnraisableHookArgs) -> None:
        if problem.exc_type is not KeyboardInterrupt:  # which has reached a destructor
            told(problem)

    told, sys.unraisablehook = sys.unraisablehook, unraisable
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except BaseException:
        if not came:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = told
    if came:
        raise _in_a_line(KeyboardInterrupt()) from None


def _in_a_line(interrupt: KeyboardInterrupt) -> KeyboardInterrupt:
    others = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is interrupt:
            print("error: interrupted", file=sys.stderr)
        else:
            others(kind, value, trace)

    sys.excepthook = show
    return interrupt
