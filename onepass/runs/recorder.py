"""The listener that writes a run's folder."""

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

SECONDS_BETWEEN = 10  # the least seconds between two checkpoints of `auto`


class Recorder(Listener):
    """Writes evaluation points, the lines of the other listeners, checkpoints and the result.

    It writes a checkpoint after each `every` steps and after the last step. `auto` means every ten
    seconds, so that a kill costs about that time however long a step is. If writing takes more than
    a second, `auto` waits ten times as long as writing took. None means no checkpoint.

    `audience` holds the observers and, last, the recorder, so that it can write the lines that the
    others record at the same event. The recorder's own lines are the points. A resumed run starts
    with the lines of its checkpoint, and writes later lines again.
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
        keys = {*before.lines, *(listener.key for listener in self.audience.listeners)}
        self.lines = {key: list(before.lines.get(key, ())) for key in keys}
        self.other_versions = before.other_versions

    @property
    def points(self) -> list[Point]:
        """All points of the run so far, from RAM: a change of events.jsonl has no effect."""
        return [parse_point(line) for line in self.lines[EVENTS]]

    def started(self, run: Run) -> None:
        assert run.stream is not None  # a job always has a stream
        self.steps, self.class_names = len(run.stream), list(run.stream.dataset.class_names)
        self.folder.remove_partials()
        for key, lines in self.lines.items():
            self.folder.rewrite(key, lines)

    def scored(self, point: Point) -> None:
        self.say(asdict(point))
        self._write_lines()

    def task_ended(self, task: int) -> None:
        self._write_lines()

    def finished(self, result: Result | None) -> None:
        self._write_lines()
        for key, lines in self.lines.items():
            self.folder.ensure_lines(key, lines)
        if result is not None:
            self.folder.finish(replace(result, dropped=self.audience.dropped))

    def save(self, learner: Learner, tick: Tick) -> None:
        """Writes a checkpoint if one is due after this tick."""
        if self._is_due(tick):
            began = time.monotonic()
            states = self.audience.state_dict()
            self._write_lines()
            progress = RunProgress(
                tick, self.lines, states, self.audience.dropped, self.other_versions
            )
            content = {**file.checkpoint_content(learner), "class_names": self.class_names}
            self.folder.save_checkpoint(content, progress)
            self.saved = time.monotonic()
            self.pause = max(SECONDS_BETWEEN, 10 * (self.saved - began))

    def _is_due(self, tick: Tick) -> bool:
        if self.every is None or tick.step == self.steps:
            return self.every is not None
        if self.every == "auto":
            return time.monotonic() - self.saved > self.pause
        return tick.step % self.every == 0

    def _write_lines(self) -> None:
        """Appends the new lines of all listeners to their files."""
        for key, lines in self.audience.take_lines_by_key().items():
            if lines:
                self.lines[key].extend(lines)
                self.folder.append(key, lines)
