"""Listeners that tests send along with a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NoReturn

from onepass.base.parts import Step
from onepass.evaluation.callbacks import Listener, Run
from onepass.learning.learner import Learner
from onepass.runs.result import Result


class Stopped(Exception):
    """What stands in for a kill in this process."""


class ActAfter(Listener):
    """Does something once so many steps are learned and what is written then is written: before
    the next step is told, or the end. It is essential, so what it raises stops the run."""

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
    """Writes down everything it is told, in order."""

    key: ClassVar[str] = "following"

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def started(self, run: Run) -> None:
        self.told.append(("started", run.since.step))

    def stepped(self, learner: Learner, step: Step) -> None:
        self.told.append(("stepped", learner.steps))

    def scored(self, point: object) -> None:
        self.told.append(("scored", point.step))

    def task_ended(self, task: int) -> None:
        self.told.append(("task ended", task))

    def finished(self, result: Result | None) -> None:
        self.told.append(("finished", result and result.steps))

    @property
    def steps(self) -> list[object]:
        return [what for hook, what in self.told if hook == "stepped"]
