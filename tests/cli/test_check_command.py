"""`onepass check` runs the contract on a user's method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from command import onepass, refused
from user_modules import write_modules

TWO = ("--only", "predict_before_learning_is_refused", "--only", "same-seed-same-bits")
FAILS = """
    def step(self, x, y):
        len(y) / 0
        return super().step(x, y)
"""


@dataclass
class NoLearner:
    """A class that is not derived from Learner."""


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_modules(tmp_path, monkeypatch)


def line_of(text: str) -> int:
    """Returns the number of the one line of this module that holds a text."""
    lines = enumerate(Path("mymethod.py").read_text().splitlines(), 1)
    (number,) = (number for number, line in lines if text in line)
    return number


def test_a_method_that_keeps_the_contract_is_told_so(own_modules: Path) -> None:
    done = onepass("check", "mymethod:Mine", *TWO)
    assert (done.status, done.out.splitlines()[1]) == (0, "ok      same seed same bits")
    assert "2 passed, 0 failed, 0 exempt" in done.err


def test_what_a_method_fails_in_is_said_in_a_line_and_by_the_exit_status(own_modules: Path) -> None:
    with (own_modules / "mymethod.py").open("a") as file:
        file.write("    def predict(self, x):\n        return x\n")
    done = onepass("check", "mine", "--import", "mymethod", *TWO)
    assert done.status == 1
    assert done.out.startswith(
        "FAILED  predict before learning is refused: expected NotFittedError before anything is "
        f"learned; found an answer (mymethod.py:{line_of('def predict')}, in Mine.predict)\n"
    )
    assert "1 passed, 1 failed" in done.err


def test_an_error_is_said_with_the_line_of_the_method_that_it_comes_from(own_modules: Path) -> None:
    with (own_modules / "mymethod.py").open("a") as file:
        file.write(FAILS)
    done = onepass("check", "mine", "--import", "mymethod", "--only", "same_seed_same_bits")
    assert done.status == 1
    assert done.out == (
        "FAILED  same seed same bits: expected no error; found ZeroDivisionError: division by zero "
        f"(mymethod.py:{line_of('len(y) / 0')}, in Mine.step)\n"
    )


@pytest.mark.parametrize(
    "spelled", ["same_seed_same_bits", "same-seed-same-bits", "same seed same bits"]
)
def test_a_check_may_be_written_as_it_is_called_or_as_it_is_shown(
    spelled: str, own_modules: Path
) -> None:
    done = onepass("check", "mymethod:Mine", "--only", spelled)
    assert (done.status, done.out) == (0, "ok      same seed same bits\n")


def test_an_exempt_check_that_is_asked_for_is_said_to_be_exempt() -> None:
    done = onepass("check", "finetune", "--only", "memory-reaches-the-gradient")
    assert done.status == 0
    assert done.out.startswith("exempt  memory reaches the gradient: ")
    assert "0 passed, 0 failed, 1 exempt" in done.err


def test_an_unknown_check_is_answered_with_the_nearest() -> None:
    said = refused("check", "er", "--only", "same-seed-same-bit")
    assert "unknown check 'same_seed_same_bit'. Did you mean 'same_seed_same_bits'?" in said


def test_what_is_no_method_is_refused() -> None:
    assert "not a class derived from onepass.Learner" in refused("check", f"{__name__}:NoLearner")
    assert "unknown method 'gas'" in refused("check", "gas")
    assert "--import MODULE" in refused("check", "gas")
