"""The database of a search: whatever is damaged in it is one line, and its numbers are short."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from fast_studies import no_disk_sync

import onepass
from onepass.base.errors import RunError
from onepass.tuning.space import Range, Space
from onepass.tuning.study import Ending, Study

SPACE = Space.read(
    {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "loss": ["sum", "mean"]},
    onepass.ER,
    "space.toml",
)
ASKED = {"method": "er", "memory": 100}
PAGE = 4096  # bytes


@pytest.fixture(scope="module", autouse=True)
def in_a_hurry() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        no_disk_sync(patched)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a study with a complete trial and one that is running."""
    study = Study(tmp_path_factory.mktemp("whole") / "study.db")
    search(study)
    study.report(study.ask(SPACE, seed=0).number, 2, 50.0)
    return study.file


@pytest.fixture
def file(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path))


def search(study: Study) -> None:
    """Does with a study what a search and its runs do."""
    study.expect_same_search(ASKED, study.file.parent)
    study.unfinished()
    trial = study.ask(SPACE, seed=0)
    study.first_trial_with(trial.settings)
    study.report(trial.number, 2, 60.0)
    study.mark_stopped(trial.number)
    study.ending(trial.number)
    study.tell(trial, Ending(70.0))


def execute(file: Path, *statements: str) -> None:
    database = sqlite3.connect(file)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE trial_user_attributes",
        "DROP TABLE trial_params",
        "DROP TABLE trial_values",
        "DROP TABLE studies",
        "DELETE FROM study_directions",
        "DELETE FROM studies",
        "UPDATE study_directions SET direction = 'MINIMIZE'",
        "UPDATE trials SET state = 'lost'",
        "UPDATE trials SET datetime_start = 'yesterday'",
        "UPDATE trials SET number = 0",
        "UPDATE trial_values SET value = 'high'",
        "UPDATE trial_intermediate_values SET intermediate_value = ''",
        "UPDATE trial_params SET distribution_json = '[]'",
        "UPDATE trial_params SET param_name = 'other' WHERE param_name = 'lr'",
        "UPDATE trial_user_attributes SET value_json = '{' WHERE key = 'settings'",
        "UPDATE trial_user_attributes SET value_json = '3' WHERE key = 'settings'",
        """UPDATE trial_user_attributes SET value_json = '{"lr": "1"}' WHERE key = 'settings'""",
        "UPDATE trial_user_attributes SET value_json = NULL WHERE key = 'settings'",
        "UPDATE study_user_attributes SET value_json = '[]'",
        "UPDATE alembic_version SET version_num = 'later'",
    ],
)
def test_what_is_damaged_in_a_study_is_one_line(statement: str, file: Path) -> None:
    execute(file, statement)
    with pytest.raises(RunError) as caught:
        search(Study(file))
    assert str(caught.value).startswith(f"{file} cannot be used: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(6))
def test_overwritten_pages_are_one_line_or_do_no_harm(seed: int, file: Path) -> None:
    rng, content = Random(seed), bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 4))):
        start = PAGE * rng.randrange(len(content) // PAGE) + rng.choice((0, 0, 100, 3000))
        size = min(rng.choice((4, 50, PAGE)), len(content) - start)
        content[start : start + size] = rng.randbytes(size)
    file.write_bytes(content)
    try:
        search(Study(file))
    except RunError as problem:
        assert str(problem).startswith(f"{file} cannot be used: ")
        assert "\n" not in str(problem)


def test_a_trial_that_is_being_written_is_not_damaged(file: Path) -> None:
    study = Study(file)
    number = study.ask(SPACE, seed=0).number
    execute(file, f"DELETE FROM trial_params WHERE trial_id = {number + 1}")
    assert [trial.number for trial in Study(file).trials()][-1] == number
    with pytest.raises(RunError, match=f"the setting of trial {number} is damaged"):
        Study(file).unfinished()  # the search has no other writer when it begins


def test_an_error_of_ours_is_no_damage(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(space: Space, chosen: object) -> None:
        raise TypeError("a bug of ours")

    monkeypatch.setattr(Space, "texts", wrong)
    with pytest.raises(TypeError, match="a bug of ours"):
        search(Study(file))


def test_a_study_that_is_locked_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onepass.tuning.study.WAIT", 0.1)
    study = Study(file)
    other = sqlite3.connect(file)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RunError, match="database is locked"):
        study.ask(SPACE, seed=0)
    other.close()


def test_the_database_holds_the_short_numbers_that_are_run(file: Path) -> None:
    study = Study(file)
    for _ in range(14):  # beyond the first ten Optuna models the trials, by another function
        study.tell(trial := study.ask(SPACE, seed=1), Ending(float(trial.settings["lr"])))
    for entry in study.trials():
        rate, text = entry.params["lr"], entry.user_attrs["settings"]["lr"]
        assert float(text) == rate and repr(rate) == text
        assert float(f"{rate:.3g}") == rate
    assert len({entry.params["lr"] for entry in study.trials()}) > 10


def test_a_study_with_long_numbers_goes_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(file)
    with monkeypatch.context() as before:
        before.setattr(Range, "short", lambda self, value: value)
        old = [study.ask(SPACE, seed=2) for _ in range(2)]
    study.tell(old[0], Ending(50.0))
    assert max(len(trial.settings["lr"]) for trial in old) > 12
    again = Study(file)
    assert [trial.settings for trial in again.unfinished()][-1] == old[1].settings
    assert again.first_trial_with(old[0].settings) == old[0].number
    assert len(again.ask(SPACE, seed=2).settings["lr"]) < 9
