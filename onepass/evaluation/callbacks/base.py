"""The base class of everything that follows a run without changing it."""

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
    """A run as `Listener.started` receives it.

    `since` is the tick after which the run continues; its step is 0 unless an interrupted run is
    resumed. `job` and `folder` are None in a plain `evaluate`; `stream` is None if the user passes
    an iterable of batches.
    """

    learner: Learner
    stream: Stream | None
    since: Tick = BEGINNING
    job: Job | None = None
    folder: Path | None = None


class Listener:
    """Receives the events of a run. A subclass overrides only the hooks that it needs.

    For each batch of a `Stream` the order is: `stepped`; then `scored`, if this is an evaluation
    point; then `task_ended`, if the batch was the last of its task. A listener must not change its
    arguments.

    `key` names the listener and its file, `<key>.jsonl` in the run's folder. If an `essential`
    listener fails, the run stops; any other listener is dropped, and the run continues. A run with
    a listener that `needs_network` does not begin unless its method trains a network.
    """

    key: ClassVar[str] = "listener"
    essential: ClassVar[bool] = False
    needs_network: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Sets the key of a subclass to the name of its class, unless its own body defines a key:
        keys are not inherited."""
        cls.key = vars(cls).get("key", cls.__name__)

    def started(self, run: Run) -> None:
        """Called before the first batch. A resumed run begins with the batch after
        `run.since`."""

    def stepped(self, learner: Learner, step: Step) -> None:
        """Called after each learned batch. The listener may keep the tensors of `step`."""

    def scored(self, point: Point) -> None:
        """Called after the learner was scored."""

    def task_ended(self, task: int) -> None:
        """Called when a task has ended, after `scored` if the learner is scored there. In an
        iterable of batches the end of a task shows only when the next task begins: there it is
        called before `stepped` of the next task's first batch, when `learner` has learned it."""

    def finished(self, result: Result | None) -> None:
        """Called at the end of the stream. `result` is None in a plain `evaluate`."""

    def state_dict(self) -> dict[str, Any]:
        """Returns all that later events depend on, as plain values and tensors. Checkpoints hold
        this state, so that a resumed run ends like one that was never stopped."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state. `started` is called next."""

    def say(self, line: dict[str, Any]) -> None:
        """Records a line, which a run writes to `<key>.jsonl`. Raises an error unless `line` is
        plain JSON, without NaN and infinity."""
        self._unread_lines.append(json.dumps(line, allow_nan=False))

    def take_lines(self) -> list[str]:
        """Returns the lines since the last call, and clears them."""
        lines = list(self._unread_lines)
        self._unread_lines.clear()
        return lines

    @cached_property
    def _unread_lines(self) -> list[str]:
        return []
