"""Writes a run's log.txt: starts, resumptions, progress, the end, warnings and errors."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onepass.base.errors import OnepassError, TrainingError
from onepass.base.news import Line, Pace, heard_by, tell
from onepass.evaluation.points import Point, Tick
from onepass.runs.folder import RunFolder

EXPECTED = (OnepassError, OSError, TrainingError)  # these need no traceback
log = logging.getLogger("onepass")


@contextmanager
def log_run(folder: RunFolder, done: int) -> Iterator[None]:
    """Logs the start, all lines told, the warnings, and the end or the error of a run in the `with`
    block. `done` is the number of steps that earlier processes have done. An unexpected error gets
    a note with the path of the log, which has its traceback."""
    folder.add_to_log(f"resumed after step {done}" if done else "started")
    try:
        with (
            _copying_warnings(folder.add_to_log),
            heard_by(lambda line: folder.add_to_log(line.text)),
        ):
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


class StepLines:
    """Tells how far a run is, now and then, in lines: the step, the accuracy at the latest
    evaluation point, and the time left. `done` is as in `log_run`."""

    def __init__(self, steps: int, done: int) -> None:
        self.pace, self.accuracy = Pace(steps, done), ""

    def follow(self, tick: Tick) -> None:
        """Tells of a run after this tick, if a line is due."""
        if isinstance(tick, Point):
            self.accuracy = f"task {tick.task + 1}: {tick.accuracy:.1f} %, "
        if self.pace.is_due(tick.step):
            left = self.pace.left(tick.step)
            tell(Line(f"step {tick.step} of {self.pace.total}, {self.accuracy}{left}", "steps"))


@contextmanager
def _copying_warnings(note: Callable[[str], object]) -> Iterator[None]:
    """Passes a copy of each warning to `note`; the warnings still reach standard error. This is a
    filter, because a handler on our logger would keep them from it."""

    def copy(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            note(f"{record.levelname.lower()}: {record.getMessage()}")
        return True

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        note(f"warning: {category.__name__}: {message}")
        original(message, category, *where, **more)

    original = warnings.showwarning
    warnings.showwarning = show
    log.addFilter(copy)
    try:
        yield
    finally:
        log.removeFilter(copy)
        warnings.showwarning = original
