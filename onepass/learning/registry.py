"""The registry of methods, and the facts about each. The CLI, tables, checks and documents read
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from onepass.base.registry import Registry

if TYPE_CHECKING:
    from onepass.learning.learner import Learner

Boundaries = Literal["ignores", "uses"]
L = TypeVar("L", bound="Learner")


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
        return learner

    return register


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
