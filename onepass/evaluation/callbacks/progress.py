"""Sends the progress of a run to the process that displays it.

The run may be in a worker process, while the progress bar belongs to its parent's command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onepass.base.news import Line
from onepass.evaluation.callbacks.base import Listener, Run

if TYPE_CHECKING:
    from onepass.base.parts import Step
    from onepass.evaluation.points import Point
    from onepass.learning.learner import Learner

# The least seconds from one message to the next between evaluation points: each message has a
# cost, and eyes are no faster.
PAUSE = 0.1


@dataclass(frozen=True)
class Progress:
    """The number of learned batches (`step` of `steps`; `steps` is 0 if unknown), and the task and
    accuracy in percent at the latest evaluation point. Before the first point after a start,
    `accuracy` is None. `line` is what the run has just told, if that is why this was sent."""

    step: int
    steps: int
    task: int = 0
    accuracy: float | None = None
    line: Line | None = None


class Forwarder(Listener):
    """Sends the progress at the start and at every evaluation point; between them after a step, but
    at most once in `PAUSE` seconds. As a hearer it also sends every line (`hear`)."""

    key: ClassVar[str] = "progress"

    def __init__(self, send: Callable[[Progress], None]) -> None:
        self.send = send
        self.sent = 0.0
        self.step = self.steps = self.task = 0
        self.accuracy: float | None = None

    def started(self, run: Run) -> None:
        self.step, self.steps = run.since.step, len(run.stream or ())
        self.task, self.accuracy = run.since.task, None
        self._send()

    def stepped(self, learner: Learner, step: Step) -> None:
        self.step += 1
        if time.monotonic() - self.sent > PAUSE:
            self._send()

    def scored(self, point: Point) -> None:
        self.task, self.accuracy = point.task, point.accuracy
        self._send()

    def hear(self, line: Line) -> None:
        """Sends a line that the run has told."""
        self._send(line)

    def _send(self, line: Line | None = None) -> None:
        self.sent = time.monotonic()
        self.send(Progress(self.step, self.steps, self.task, self.accuracy, line))
