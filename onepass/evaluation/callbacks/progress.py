"""How far a run is, sent to whoever shows it: the bar is the parent's, the run may be a worker's.

The bar itself is no listener: it belongs to the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onepass.evaluation.callbacks.base import Listener, Run

if TYPE_CHECKING:
    from onepass.base.parts import Step
    from onepass.evaluation.points import Point
    from onepass.learning.learner import Learner

PAUSE = 0.1  # seconds between two messages: a bar is not read faster, and each one costs


@dataclass(frozen=True)
class Progress:
    """How many of how many batches a run has learned, and its last score so far."""

    step: int
    steps: int
    task: int = 0
    accuracy: float | None = None


class Forwarder(Listener):
    """Sends how far the run is: at its start, at every score, and now and then between."""

    key: ClassVar[str] = "progress"

    def __init__(self, send: Callable[[Progress], None]) -> None:
        self.send = send
        self.sent = 0.0
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

    def _send(self) -> None:
        self.sent = time.monotonic()
        self.send(Progress(self.step, self.steps, self.task, self.accuracy))
