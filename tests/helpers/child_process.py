"""Runs code that may kill the process, or hang, in a forked copy of it."""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable


def in_child(act: Callable[[], object], seconds: int = 20) -> None:
    """Fails if the code raises, kills the copy of this process, or takes too long."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python minds forks beside threads
        child = os.fork()
    if child == 0:
        _run_and_exit(act, seconds)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    how = signal.Signals(-status).name if status < 0 else "an exception, printed above"
    assert status == 0, f"the process was ended by {how}"


def _run_and_exit(act: Callable[[], object], seconds: int) -> None:
    """Runs the code under an alarm and leaves without returning to pytest."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    status = 1
    try:
        act()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
