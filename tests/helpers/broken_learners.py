"""Learners that break one check of the contract, and the failure that the check must raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from label_vectors import register

from onepass import Learner
from onepass.tools.checks import CHECKS


class Case(NamedTuple):
    check: str
    method: type[Learner]
    says: str
    by: type[Exception]


class BrokenLearners:
    """The broken learners of one test file; each names the check that must reject it."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def breaks(
        self, check: str, says: str = "", by: type[Exception] = AssertionError
    ) -> Callable[[type[Learner]], type[Learner]]:
        """Registers a learner that a check must reject with these words.

        If the learner itself raises, `by` is the class of that error.
        """

        def add(cls: type[Learner]) -> type[Learner]:
            self.cases.append(Case(check, dataclass(kw_only=True, eq=False)(cls), says, by))
            return cls

        return add

    def register(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Registers the learners by name, because a learner without a name cannot be saved."""
        register(monkeypatch, *(case.method for case in self.cases))

    @property
    def each(self) -> pytest.MarkDecorator:
        names = [f"{case.check}-{case.method.__name__}" for case in self.cases]
        return pytest.mark.parametrize("case", self.cases, ids=names)

    @property
    def checks(self) -> set[str]:
        return {case.check for case in self.cases}


def expect_failure(case: Case) -> None:
    with pytest.raises(case.by) as caught:
        CHECKS[case.check](case.method)
    assert case.says in str(caught.value)
