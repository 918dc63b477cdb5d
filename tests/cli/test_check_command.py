"""onepass check: the contract, for a method of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from command import onepass, refused
from own import write_modules

from onepass.tools import checks


@dataclass
class NoLearner:
    """Not derived from Learner."""


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_modules(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("predict_before_learning_is_refused", "same_seed_same_bits", *checks.NEEDS_GPU)
    monkeypatch.setattr(checks, "CHECKS", {name: checks.CHECKS[name] for name in names})


def test_a_method_that_keeps_the_contract_is_told_so(own_modules: Path) -> None:
    done = onepass("check", "mymethod:Mine")
    assert (done.status, done.out.splitlines()[1]) == (0, "ok      same seed same bits")
    assert "2 passed, 0 failed" in done.err


def test_what_a_method_fails_in_is_said_in_a_line_and_by_the_exit_status(own_modules: Path) -> None:
    with (own_modules / "mymethod.py").open("a") as file:
        file.write("    def predict(self, x):\n        return x\n")
    done = onepass("check", "mine", "--import", "mymethod")
    assert done.status == 1
    assert done.out.startswith("FAILED  predict before learning is refused: ")
    assert "1 passed, 1 failed" in done.err


def test_what_is_no_method_is_refused() -> None:
    assert "no class derived from onepass.Learner" in refused("check", f"{__name__}:NoLearner")
    assert "unknown method 'gas'" in refused("check", "gas")
    assert "--import MODULE" in refused("check", "gas")
