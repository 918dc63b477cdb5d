"""`onepass.tune`, which does in Python what the command does."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import onepass as command
from fast_studies import no_disk_sync

import onepass
from onepass.base.errors import OnepassError, RunError, TrainingError
from onepass.evaluation import schedule
from onepass.evaluation.callbacks import Progress
from onepass.tuning.search import SearchState
from onepass.tuning.tune import TuneListener

SPACE: dict[str, Any] = {
    "space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "loss": ["sum", "mean"]},
    "defaults": {"dataset": "synthetic", "batch": 60},
}
FILE = """
[space]
lr = {low = 1e-4, high = 1e-2, log = true}
loss = ["sum", "mean"]
[defaults]
dataset = "synthetic"
batch = 60
"""


@pytest.fixture(autouse=True)
def in_a_hurry() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        no_disk_sync(patched)
        yield


def tuned(out: Path, space: Any = SPACE, trials: int = 2, **options: Any) -> SearchState:
    return onepass.tune("er", space, trials, out=out, device="cpu", **options)


class Following(TuneListener):
    def __init__(self) -> None:
        self.first: SearchState | None = None
        self.steps: dict[tuple[int, int], int] = {}
        self.ends: list[tuple[int, int] | None] = []

    def started(self, state: SearchState) -> None:
        self.first = state

    def progressed(self, trial: int, seed: int, progress: Progress) -> None:
        self.steps[trial, seed] = progress.step

    def ended(self, state: SearchState) -> None:
        self.ends.append(state.run)


def test_a_search_ends_like_that_of_the_command_and_returns_its_best(tmp_path: Path) -> None:
    following = Following()
    best = tuned(tmp_path / "python", listener=following)
    (tmp_path / "space.toml").write_text(FILE)
    arguments = ("--space", tmp_path / "space.toml", "--trials", 2, "--out", tmp_path / "command")
    done = command("tune", "er", *arguments, "--device", "cpu")
    assert done.status == 0, done.err
    assert best.best_file == tmp_path / "python" / "best.toml"
    assert best.best_file.read_text() == done.out
    found = tomllib.loads(done.out)
    assert best.settings == {"lr": repr(found["lr"]), "loss": found["loss"]}
    assert (best.ended, best.stopped, best.problems) == (2, 0, [])
    assert following.first is not None and following.first.ended == 0
    assert following.steps == {(0, 0): 10, (1, 0): 10}
    assert following.ends == [(0, 0), (1, 0)]
    again = tuned(tmp_path / "python")
    assert (again.run, again.best, again.value) == (None, best.best, best.value)


def test_arguments_override_the_files_defaults_and_settings_may_be_values(tmp_path: Path) -> None:
    space = {**SPACE, "defaults": {**SPACE["defaults"], "memory": 30, "set": {"replay": 16}}}
    best = tuned(tmp_path, space, 1, memory=20, settings={"replay": 8, "head": "frozen"}, seeds=2)
    assert best.settings is not None
    assert (best.settings["replay"], best.settings["head"]) == ("8", "frozen")
    assert len(list((tmp_path / "runs").glob("er-synthetic-m20-*"))) == 2


def test_a_search_without_a_complete_trial_is_an_error(tmp_path: Path) -> None:
    space = {**SPACE, "space": {"lr": [1e37, 1e38]}}
    with pytest.raises(TrainingError, match="no trial has run to its end: 1 trials"):
        tuned(tmp_path, space, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "trials must be at least 1"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"memory": "much"}, "memory must be"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"validation": 0}, "never on the test set"),
        ({"objective": "forgetting"}, "objective"),
        ({"jobs": 0}, "must be at least 1, not 0"),
        ({"settings": {"lr": 1}}, "'lr' is searched"),
        ({"space": {"spaec": {}}}, "table of the search"),
        ({"space": {"lr": [1]}}, "table of the search"),
        ({"space": "none.toml"}, "there is no file none.toml"),
    ],
)
def test_an_invalid_search_is_refused_before_anything_runs(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OnepassError, match=message):
        tuned(tmp_path / "search", **options)
    assert not (tmp_path / "search").exists()


def test_a_search_is_not_resumed_where_the_default_scores_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any-time accuracies of its trials would be of other points."""
    space = {**SPACE, "defaults": {"dataset": "digits", "batch": 50}}
    onepass.tune("er", space, 1, out=tmp_path, device="cpu")
    monkeypatch.setattr(schedule, "LONG", 0)
    with pytest.raises(RunError, match="another every: None, not 2"):
        onepass.tune("er", space, 2, out=tmp_path, device="cpu")
