"""What a run's log.txt tells: when it started, went on and ended, what it was warned of, and how it
failed."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onepass.base.errors import OnepassError, TrainingError
from onepass.runs.folder import RunFolder

EXPECTED = (OnepassError, OSError, TrainingError)  # their words say enough
log = logging.getLogger("onepass")


@contextmanager
def log_run(folder: RunFolder, done: int) -> Iterator[None]:
    """Around all steps of a run, of which so many were done before. An error that nobody expected
    says where its traceback is."""
    folder.add_to_log(f"resumed after step {done}" if done else "started")
    try:
        with _copying_warnings(folder.add_to_log):
            yield
    except EXPECTED as problem:
        folder.add_to_log(f"failed: {problem}")
        raise
    except Exception as problem:
        if folder.add_to_log(f"failed: {''.join(traceback.format_exception(problem))}"):
            problem.add_note(f"its traceback is in {folder.log_file}")
        raise
    except BaseException as problem:
        folder.add_to_log(f"stopped: {type(problem).__name__}")
        raise
    folder.add_to_log("finished")


@contextmanager
def _copying_warnings(note: Callable[[str], object]) -> Iterator[None]:
    """Warnings go where they would go, and into the log. (A handler on our logger would keep them
    from standard error.)"""

    def hear(record: logging.LogRecord) -> bool:
        note(f"{record.levelname.lower()}: {record.getMessage()}")
        return True

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        note(f"warning: {category.__name__}: {message}")
        shown(message, category, *where, **more)

    shown = warnings.showwarning
    warnings.showwarning = show
    log.addFilter(hear)
    try:
        yield
    finally:
        log.removeFilter(hear)
        warnings.showwarning = shown
