"""The one protocol of everything that follows a run without changing it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from onepass.evaluation.points import BEGINNING, Point, Tick

if TYPE_CHECKING:
    from onepass.base.parts import Step
    from onepass.learning.learner import Learner
    from onepass.runs.result import Result
    from onepass.runs.spec import Job
    from onepass.streams import Stream

EVENTS = "events"  # the key of the listener that records points in a run's folder


@dataclass(frozen=True)
class Run:
    """What is about to be run.

    `since` is the tick after which it goes on; its step is 0 unless a broken run is resumed. A
    plain `evaluate` has no job and no folder, and batches of the user's own are no stream.
    """

    learner: Learner
    stream: Stream | None
    since: Tick = BEGINNING
    job: Job | None = None
    folder: Path | None = None


class Listener:
    """Told of a run's events; it writes only those hooks that it needs.

    For each batch: `stepped`, then `scored` if it was a point, then `task_ended` if a task has
    ended with it. A listener may read what it is given and never changes it.

    `key` names the listener, and the file of what it says: `<key>.jsonl` in the run's folder. An
    `essential` listener that fails stops the run; any other is dropped, and the run goes on.
    """

    key: ClassVar[str] = "listener"
    essential: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """A listener that was given no name of its own has that of its class."""
        cls.key = vars(cls).get("key", cls.__name__)

    def started(self, run: Run) -> None:
        """The first batch comes next; if the run is resumed, the first after `run.since`."""

    def stepped(self, learner: Learner, step: Step) -> None:
        """A batch was learned. The tensors of `step` are the listener's to keep."""

    def scored(self, point: Point) -> None:
        """The learner was scored."""

    def task_ended(self, task: int) -> None:
        """The stream's task of this number is over, and was scored if it is scored at all. That of
        batches of one's own is seen to be over when the learner has begun the next one."""

    def finished(self, result: Result | None) -> None:
        """The stream is over; a plain `evaluate` has no result."""

    def state_dict(self) -> dict[str, Any]:
        """What it keeps from one batch to the next, as plain values and tensors: checkpoints hold
        it, so that a resumed run ends as one that was never stopped."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with a saved state; `started` comes next."""

    def say(self, line: dict[str, Any]) -> None:
        """Says something that is recorded: plain JSON, so no NaN and no infinity."""
        self._pending.append(json.dumps(line, allow_nan=False))

    def take_lines(self) -> list[str]:
        """What it has said since it was last asked."""
        lines = list(self._pending)
        self._pending.clear()
        return lines

    @cached_property
    def _pending(self) -> list[str]:
        return []
