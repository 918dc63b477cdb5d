"""Learners that break a check, and how the check must tell."""

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
    """Those of one test file; a check that they must fail may be any."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def breaks(
        self, check: str, says: str = "", by: type[Exception] = AssertionError
    ) -> Callable[[type[Learner]], type[Learner]]:
        """The check must fail with a sentence of its own that has these words, unless its subject
        itself fails by an error of another kind."""

        def add(cls: type[Learner]) -> type[Learner]:
            self.cases.append(Case(check, dataclass(kw_only=True, eq=False)(cls), says, by))
            return cls

        return add

    def register(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With names, so that what is broken about them is not that they cannot be saved."""
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
