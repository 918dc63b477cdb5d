"""An audience passes events on to several listeners, and drops those that fail."""

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
from onepass.learning.network_learner import expect_network

if TYPE_CHECKING:
    from onepass.runs.result import Result

log = logging.getLogger("onepass")
PLAIN = (str, int, float, bool, NoneType)


class Audience(Listener):
    """A listener that passes every event on to several others, in their order.

    A listener that raises an error in any hook is dropped for the rest of the run, with a warning.
    `dropped` holds the reasons by the keys of the dropped listeners. In a resumed run it begins
    with those of the checkpoint. An error of an essential listener is raised.
    """

    essential: ClassVar[bool] = True

    def __init__(
        self, listeners: Sequence[Listener], dropped: Mapping[str, str] | None = None
    ) -> None:
        self.listeners = list(listeners)
        self.dropped = dict(dropped or {})
        self.active = [each for each in self.listeners if each.key not in self.dropped]
        expect_distinct_keys(self.listeners)

    def started(self, run: Run) -> None:
        for listener in self.active:
            if listener.needs_network:
                expect_network(run.learner, f"the listener {listener.key!r}")
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
        """Returns the state of each active listener, by its key. A listener whose state a
        checkpoint cannot hold is dropped."""
        states = {each.key: self._call(each, "state_dict") for each in self.active}
        for listener in self.active:
            if not _is_plain(states[listener.key]):
                self._drop(listener, "its state must hold plain values and tensors only")
        return {each.key: states[each.key] for each in self.active}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for listener in self.active:
            if listener.key in state:
                self._call(listener, "load_state_dict", state[listener.key])

    def take_lines_by_key(self) -> dict[str, list[str]]:
        """Returns the lines that each listener has recorded since the last call, by its key. A
        dropped listener gives the lines from before its error."""
        return {each.key: each.take_lines() for each in self.listeners}

    def _notify(self, hook: str, *arguments: Any) -> None:
        for listener in self.active:
            self._call(listener, hook, *arguments)

    def _call(self, listener: Listener, hook: str, *arguments: Any) -> Any:
        try:
            return getattr(listener, hook)(*arguments)
        except Exception as problem:
            if listener.essential:
                raise
            self._drop(listener, f"{type(problem).__name__} in {hook}: {problem}")
            return None

    def _drop(self, listener: Listener, reason: str) -> None:
        self.dropped[listener.key] = reason
        # A new list: `_notify` may be iterating over the old one.
        self.active = [other for other in self.active if other is not listener]
        log.warning("the listener %r is dropped, the run goes on: %s", listener.key, reason)


def expect_distinct_keys(listeners: Sequence[Listener]) -> None:
    """Raises an InputError if two listeners have the same key, or if a key cannot be the name of a
    file."""
    keys = [listener.key for listener in listeners]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"two listeners have the key {key!r}; give one of them another key")
        if not is_file_name(key):
            raise InputError(f"the key of a listener must be usable as a file name, not {key!r}")


def _is_plain(tree: Any) -> bool:
    """Returns whether a checkpoint can hold a state. Checkpoints are read as data, never as code,
    so they cannot hold objects of other classes."""
    if type(tree) is dict:
        return all(_is_plain(part) for pair in tree.items() for part in pair)
    if type(tree) in (list, tuple):
        return all(map(_is_plain, tree))
    # The exact type: NumPy's float64 is a subclass of float, but torch cannot read it back.
    return type(tree) in (*PLAIN, Tensor)
