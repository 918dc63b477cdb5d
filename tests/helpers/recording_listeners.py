"""Listeners that tests attach to a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NoReturn

from onepass.base.parts import Step
from onepass.evaluation.callbacks import Listener, Run
from onepass.learning.learner import Learner
from onepass.runs.result import Result


class Stopped(Exception):
    """Simulates a kill of the run within this process."""


class ActAfter(Listener):
    """Acts once `step` steps are learned and written, before the next step or the end.

    It is essential, so an exception of the action stops the run.
    """

    essential: ClassVar[bool] = True

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def started(self, run: Run) -> None:
        self.done = run.since.step

    def stepped(self, learner: Learner, step: Step) -> None:
        self._act()
        self.done += 1

    def finished(self, result: Result | None) -> None:
        self._act()

    def _act(self) -> None:
        if self.done == self.step:
            self.action()


def stop_after(step: int) -> ActAfter:
    def stop() -> NoReturn:
        raise Stopped

    return ActAfter(step, stop)


class RecordingListener(Listener):
    """Records every call of its hooks, in order."""

    key: ClassVar[str] = "following"

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def started(self, run: Run) -> None:
        self.calls.append(("started", run.since.step))

    def stepped(self, learner: Learner, step: Step) -> None:
        self.calls.append(("stepped", learner.steps))

    def scored(self, point: object) -> None:
        self.calls.append(("scored", point.step))

    def task_ended(self, task: int) -> None:
        self.calls.append(("task ended", task))

    def finished(self, result: Result | None) -> None:
        self.calls.append(("finished", result and result.steps))

    @property
    def steps(self) -> list[object]:
        return [value for hook, value in self.calls if hook == "stepped"]
