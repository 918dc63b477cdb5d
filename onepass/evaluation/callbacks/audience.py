"""Telling several listeners, and going on without those that fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from onepass.base.errors import InputError
from onepass.base.fileio import is_file_name
from onepass.base.parts import Step
from onepass.evaluation.callbacks.base import Listener, Run
from onepass.evaluation.points import Point
from onepass.learning.learner import Learner

if TYPE_CHECKING:
    from onepass.runs.result import Result

log = logging.getLogger("onepass")
PLAIN = (str, int, float, bool, NoneType)


class Audience(Listener):
    """Listeners as one, told in their order.

    An observer that raises, in whatever hook, is named, and dropped for the rest of the run;
    `dropped` holds the reasons. An essential listener's error is the audience's own.
    """

    essential: ClassVar[bool] = True

    def __init__(
        self, listeners: Sequence[Listener], dropped: Mapping[str, str] | None = None
    ) -> None:
        self.listeners = list(listeners)
        self.dropped = dict(dropped or {})
        self.active = [one for one in self.listeners if one.key not in self.dropped]
        expect_distinct_keys(self.listeners)

    def started(self, run: Run) -> None:
        self._notify("started", run)

    def stepped(self, learner: Learner, step: Step) -> None:
        self._notify("stepped", learner, step)

    def scored(self, point: Point) -> None:
        self._notify("scored", point)

    def task_ended(self, task: int) -> None:
        self._notify("task_ended", task)

    def finished(self, result: Result | None) -> None:
        self._notify("finished", result)

    def state_dict(self) -> dict[str, Any]:
        """The state of each, by its key."""
        states = {one.key: self._call(one, "state_dict") for one in self.active}
        for one in self.active:
            if not _is_plain(states[one.key]):
                self._drop(one, "its state is more than plain values and tensors")
        return {one.key: states[one.key] for one in self.active}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for one in self.active:
            if one.key in state:
                self._call(one, "load_state_dict", state[one.key])

    def take_lines_by_key(self) -> dict[str, list[str]]:
        """What each has said since, by its key; those that were dropped since, too."""
        return {one.key: one.take_lines() for one in self.listeners}

    def _notify(self, hook: str, *what: Any) -> None:
        for one in self.active:
            self._call(one, hook, *what)

    def _call(self, one: Listener, hook: str, *what: Any) -> Any:
        try:
            return getattr(one, hook)(*what)
        except Exception as problem:
            if one.essential:
                raise
            self._drop(one, f"{type(problem).__name__} in {hook}: {problem}")
            return None

    def _drop(self, one: Listener, reason: str) -> None:
        self.dropped[one.key] = reason
        self.active = [other for other in self.active if other is not one]
        log.warning("the listener %r is dropped, the run goes on: %s", one.key, reason)


def expect_distinct_keys(listeners: Sequence[Listener]) -> None:
    """Each has a key of its own, which can be the name of a file."""
    keys = [one.key for one in listeners]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"there are two listeners {key!r}")
        if not is_file_name(key):
            raise InputError(f"the key of a listener names a file, which {key!r} cannot")


def _is_plain(tree: Any) -> bool:
    """Whether a checkpoint can hold it: reading one takes data only, never code."""
    if type(tree) is dict:
        return all(_is_plain(part) for pair in tree.items() for part in pair)
    if type(tree) in (list, tuple):
        return all(map(_is_plain, tree))
    return type(tree) in (*PLAIN, Tensor)  # exactly: NumPy's float is a float and cannot be read
