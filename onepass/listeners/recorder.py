"""Writes what happens into the run's folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from onepass import checkpoint
from onepass.errors import InputError
from onepass.learner import Learner
from onepass.listeners.audience import Audience
from onepass.listeners.base import Listener, Run
from onepass.record import EVENTS, Progress, RunFolder
from onepass.result import Result
from onepass.scoring import Point, Tick


class Recorder(Listener):
    """Writes points, what the observers say, checkpoints and the result.

    Points are what the recorder itself says. A resumed run begins with the lines of its checkpoint,
    so whatever was written after that is written again.
    """

    key: ClassVar[str] = EVENTS
    essential: ClassVar[bool] = True

    def __init__(
        self, folder: RunFolder, observers: Audience, before: Progress, every: int | None
    ) -> None:
        if any(one.key == EVENTS for one in observers.everyone):
            raise InputError(f"a listener cannot be called {EVENTS!r}: that file is the recorder's")
        self.folder, self.observers, self.every = folder, observers, every
        keys = (EVENTS, *(one.key for one in observers.everyone))
        self.lines = {key: list(before.lines.get(key, ())) for key in {*keys, *before.lines}}

    def started(self, run: Run) -> None:
        self.run = run
        self.folder.remove_partials()
        for key, lines in self.lines.items():
            self.folder.rewrite(key, lines)

    def scored(self, point: Point) -> None:
        self.say(asdict(point))
        self._write_down()

    def task_ended(self, task: int) -> None:
        self._write_down()

    def finished(self, result: Result | None) -> None:
        self._write_down()
        if result is not None:
            self.folder.finish(result)

    def save(self, learner: Learner, tick: Tick) -> None:
        """A checkpoint, if one is due after this tick."""
        if self.every and (tick.step % self.every == 0 or tick.step == len(self.run.stream)):
            states = self.observers.state_dict()
            self._write_down()
            names = list(self.run.stream.dataset.class_names)
            so_far = Progress(tick, self.lines, states, self.observers.dropped)
            content = {**checkpoint.content(learner), "class_names": names}
            self.folder.save_checkpoint(content, so_far)

    def _write_down(self) -> None:
        said: dict[str, Any] = {EVENTS: self.heard(), **self.observers.heard_from()}
        for key, lines in said.items():
            if lines:
                self.lines[key].extend(lines)
                self.folder.append(key, lines)
