"""Writes what happens into the run's folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import ClassVar

from onepass.evaluation.callbacks.audience import Audience
from onepass.evaluation.callbacks.base import EVENTS, Listener, Run
from onepass.evaluation.points import Point, Tick
from onepass.learning.checkpoint import file
from onepass.learning.learner import Learner
from onepass.runs.folder import RunFolder, RunProgress, parse_point
from onepass.runs.result import Result
from onepass.runs.spec import CheckpointEvery

SECONDS_BETWEEN = 10


class Recorder(Listener):
    """Writes points, what the observers say, checkpoints and the result.

    A checkpoint is written at the end, and before that every so many steps; by default, `auto`,
    every ten seconds (more seldom where writing takes longer than a second), since what a kill
    costs is time; None: no checkpoint at all.

    `audience` is the observers and the recorder: it comes last, so that it writes what the others
    have to say of an event. Points are what the recorder itself says. A resumed run begins with the
    lines of its checkpoint, so what was written after that is written again.
    """

    key: ClassVar[str] = EVENTS
    essential: ClassVar[bool] = True

    def __init__(
        self,
        folder: RunFolder,
        observers: Sequence[Listener],
        before: RunProgress,
        every: CheckpointEvery,
    ) -> None:
        self.folder, self.every = folder, every
        self.saved, self.pause = time.monotonic(), float(SECONDS_BETWEEN)
        self.audience = Audience([*observers, self], before.dropped)
        keys = {*before.lines, *(one.key for one in self.audience.listeners)}
        self.lines = {key: list(before.lines.get(key, ())) for key in keys}
        self.other_versions = before.other_versions

    @property
    def points(self) -> list[Point]:
        """All of the run so far, whatever has become of the file meanwhile."""
        return [parse_point(line) for line in self.lines[EVENTS]]

    def started(self, run: Run) -> None:
        assert run.stream is not None  # a job has one
        self.steps, self.class_names = len(run.stream), list(run.stream.dataset.class_names)
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
        for key, lines in self.lines.items():
            self.folder.ensure_lines(key, lines)
        if result is not None:
            self.folder.finish(replace(result, dropped=self.audience.dropped))

    def save(self, learner: Learner, tick: Tick) -> None:
        """A checkpoint, if one is due after this tick."""
        if self._is_due(tick):
            began = time.monotonic()
            states = self.audience.state_dict()
            self._write_down()
            so_far = RunProgress(
                tick, self.lines, states, self.audience.dropped, self.other_versions
            )
            content = {**file.content(learner), "class_names": self.class_names}
            self.folder.save_checkpoint(content, so_far)
            self.saved = time.monotonic()
            self.pause = max(SECONDS_BETWEEN, 10 * (self.saved - began))

    def _is_due(self, tick: Tick) -> bool:
        if self.every is None or tick.step == self.steps:
            return self.every is not None
        if self.every == "auto":
            return time.monotonic() - self.saved > self.pause
        return tick.step % self.every == 0

    def _write_down(self) -> None:
        for key, lines in self.audience.take_lines_by_key().items():
            if lines:
                self.lines[key].extend(lines)
                self.folder.append(key, lines)
