"""What there is to know about each method, in one row; the CLI, the tables, the checks and the
documents read it from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from onepass.base.registry import Names

if TYPE_CHECKING:
    from onepass.learning.learner import Learner

Boundaries = Literal["ignores", "uses"]
L = TypeVar("L", bound="Learner")


@dataclass(frozen=True)
class MethodInfo:
    """A method's facts.

    `key` is its name, `paper` and `year` say where it comes from (year 0: no paper). `boundaries`:
    whether it ignores task boundaries or uses them, told or inferred. `one_task`: it
    is meant for all classes at once, as a reference, and is not online. `revision` is raised
    whenever its numbers move: runs of two revisions are different runs, and no table mixes them.
    """

    key: str
    learner: type[Learner]
    paper: str
    year: int
    boundaries: Boundaries
    one_task: bool
    revision: int


METHODS = Names[MethodInfo]("method", "onepass.methods")


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
        info = MethodInfo(key, learner, paper, year, boundaries, one_task, revision)
        METHODS.add(key, info, defined=learner)
        learner.key = key
        return learner

    return register


def get(key: str) -> MethodInfo:
    return METHODS[key]


def methods() -> list[MethodInfo]:
    """All, those of installed packages too."""
    return list(METHODS.all().values())
