"""The registry of methods, and the facts about each. The CLI, tables, checks and documents read
it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from onepass.base.registry import Registry
from onepass.base.settings import Preset

if TYPE_CHECKING:
    from onepass.learning.learner import Learner

Boundaries = Literal["ignores", "uses"]
L = TypeVar("L", bound="Learner")
COMMON = "common"  # the preset in which methods are compared
TUNED = "tuned"  # the preset of a run of one method, if the method has it
DEFAULTS = Preset({}, "the constructor's defaults")


@dataclass(frozen=True, kw_only=True)
class MethodFacts:
    """The facts about a method that tables need.

    `paper` and `year` are its source (year 0: no paper). `boundaries` is whether it ignores or uses
    task boundaries. `one_task` marks a reference that learns all classes as one task, which is not
    continual learning. `revision` increases whenever the method's results change, and no table
    mixes runs of two revisions.
    """

    paper: str
    year: int
    boundaries: Boundaries = "ignores"
    one_task: bool = False
    revision: int = 1


@dataclass(frozen=True, kw_only=True)
class MethodInfo(MethodFacts):
    """An imported method: its name, its class and its facts."""

    key: str
    learner: type[Learner]

    @property
    def common(self) -> Preset:
        """The method's preset `common`: the constructor's defaults, unless the class says
        otherwise. The other presets and the user's settings override it."""
        return self.learner.presets.get(COMMON, DEFAULTS)

    @property
    def common_settings(self) -> dict[str, Any]:
        """All settings under `common` that have a value without the user's."""
        defaults = {option.name: option.default for option in fields(self.learner) if option.init}
        given = {name: value for name, value in defaults.items() if value is not MISSING}
        return given | self.common.settings


METHODS = Registry[MethodInfo]("method", "onepass.methods", "onepass.methods")


def method(
    key: str,
    *,
    paper: str,
    year: int,
    boundaries: Boundaries = "ignores",
    one_task: bool = False,
    revision: int = 1,
) -> Callable[[type[L]], type[L]]:
    """Returns a decorator that registers a learner class under the name `key`, which the command
    line and the tables use. `MethodFacts` explains the other arguments."""

    def register(learner: type[L]) -> type[L]:
        info = MethodInfo(
            key=key,
            learner=learner,
            paper=paper,
            year=year,
            boundaries=boundaries,
            one_task=one_task,
            revision=revision,
        )
        METHODS.add(key, info, defined=learner)
        learner.key = key
        learner.presets = _own_and_inherited_presets(learner)
        return learner

    return register


def _own_and_inherited_presets(learner: type[Learner]) -> dict[str, Preset]:
    """Returns the presets of a class. A setting whose default the class declares itself is not
    among those that it inherits: its own default stands."""
    declared: set[str] = set()
    for cls in learner.__mro__:
        if "presets" in vars(cls):
            break
        declared |= inspect.get_annotations(cls).keys()

    def kept(settings: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in declared}

    return {
        name: Preset(kept(old.settings), old.source, old.unmirrored and kept(old.unmirrored))
        for name, old in learner.presets.items()
    }


def get(key: str) -> MethodInfo:
    """Returns a method, and imports it if necessary. Raises an UnknownNameError, which suggests the
    nearest name, if there is none."""
    return METHODS[key]


def facts(key: str) -> MethodFacts | None:
    """Returns a method's facts, or None if it is unknown. The facts of onepass's own methods are
    read from the source, without importing them."""
    if key in METHODS.entries or key not in METHODS.declared:
        return METHODS.get(key)
    return MethodFacts(**METHODS.declared[key].facts)


def methods() -> list[MethodInfo]:
    """Returns all methods, including those of installed packages. Imports them first."""
    return list(METHODS.all().values())
