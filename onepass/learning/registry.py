"""What there is to know about each method, in one row; the CLI, the tables, the checks and the
documents read it from here."""

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
    """Holds what tables need to know of a method.

    `paper` and `year` say where it comes from (year 0: no paper). `boundaries`: whether it ignores
    task boundaries or uses them, told or inferred. `one_task`: it is meant for all classes at once,
    as a reference, and is not online. `revision` is raised whenever its numbers move: runs of two
    revisions are different runs, and no table mixes them.
    """

    paper: str
    year: int
    boundaries: Boundaries = "ignores"
    one_task: bool = False
    revision: int = 1


@dataclass(frozen=True, kw_only=True)
class MethodInfo(MethodFacts):
    """A method that has been imported: its name, its class and its facts."""

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
    """Registers a learner under the name by which the command line and the tables know it."""

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
    return METHODS[key]


def facts(key: str) -> MethodFacts | None:
    """Returns a method's facts, or None if nobody knows it. A method of ours is not imported."""
    if key in METHODS.entries or key not in METHODS.declared:
        return METHODS.get(key)
    return MethodFacts(**METHODS.declared[key].facts)


def methods() -> list[MethodInfo]:
    """Returns all methods, imported, those of installed packages too."""
    return list(METHODS.all().values())
