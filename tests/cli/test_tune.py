"""`onepass tune` can stop at any moment, continues, and ends with settings for `run`."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Done, command, onepass, read_files
from fast_studies import no_disk_sync
from user_modules import write_modules

from onepass.base import fileio
from onepass.tuning import pruning, study
from onepass.tuning.study import Study

SPACE = """
[space]
lr = {low = 1e-4, high = 1e-2, log = true}
loss = ["sum", "mean"]
[defaults]
dataset = "synthetic"
batch = 60
"""
RUN = ("--dataset", "synthetic", "--batch", 60, "--validation", 0.1, "--device", "cpu", "--json")


@pytest.fixture(scope="module", autouse=True)
def in_a_hurry() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        no_disk_sync(patched)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs three trials without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "space.toml").write_text(SPACE)
    done = tune(folder / "space.toml", out=folder / "search")
    assert done.status == 0, done.err
    (folder / "said.toml").write_text(done.out)
    return folder / "search"


@pytest.fixture
def space(tmp_path: Path) -> Path:
    file = tmp_path / "space.toml"
    file.write_text(SPACE)
    return file


def tune(space: Path, *arguments: object, out: Path, trials: int = 3) -> Done:
    return onepass(*asked(space, *arguments, out=out, trials=trials))


def asked(space: Path, *arguments: object, out: Path, trials: int = 3) -> tuple[object, ...]:
    said = ("--space", space, "--trials", trials, "--out", out, "--device", "cpu")
    return ("tune", "er", *said, *arguments)


def tried(out: Path) -> list[tuple[dict[str, str], str, float | None]]:
    """Returns settings, state and value of each trial."""
    trials = Study(out / "study.db").trials()
    return [(entry.user_attrs["settings"], entry.state.name, entry.value) for entry in trials]


def results(out: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(out.rglob("result.json"))]


# ---- what comes of it


def test_a_search_ends_with_the_best_settings_which_run_takes(whole: Path, tmp_path: Path) -> None:
    settings, _, value = max(tried(whole), key=lambda entry: entry[2] or 0)
    best = whole / "best.toml"
    said = (whole.parent / "said.toml").read_text()
    assert said == best.read_text()
    assert f"{value:.2f}" in said
    assert tomllib.loads(said).keys() == {"lr", "loss"}
    pairs = [word for name, text in settings.items() for word in ("--set", f"{name}={text}")]
    common = ("run", "er", "--preset", "common")
    assert " ".join(common) in said.replace("--dataset synthetic --memory 100 --seed 0 ", "")
    by_file = onepass(*common, "--settings", best, *RUN, "--out", tmp_path / "a").record
    by_hand = onepass(*common, *pairs, *RUN, "--out", tmp_path / "b").record
    assert by_file["state_sha256"] == by_hand["state_sha256"]
    assert Path(by_file["out"]).name == Path(by_hand["out"]).name
    assert by_file["state_sha256"] in [entry["state_sha256"] for entry in results(whole)]


def test_the_command_in_the_file_runs_what_the_search_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_modules(tmp_path, monkeypatch)
    space = tmp_path / "space.toml"
    space.write_text(
        "[space]\nlr = {low = 1e-4, high = 1e-2, log = true}\nloss = ['sum', 'mean']\n"
        "[defaults]\ntasks = 2\nseeds = 2\nclass-order = 'shuffled'\nnormalise = 'first-task'\n"
        "set = {precision = 'bf16', replay = 12}\n"
    )
    chosen = ("--stream", "long-tail:rho=5", "--batch", 33, "--memory", 20, "--every", 2)
    where = ("--dataset", "synthetic", "--import", "mymethod", "--threads", 2, "--device", "cpu")
    out = tmp_path / "search"
    done = onepass("tune", "mine", "--space", space, "--trials", 2, *chosen, *where, "--out", out)
    assert done.status == 0, done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("# onepass run ")]
    name, *words = shlex.split(line[2:])
    again = onepass(*words, "--json", "--out", tmp_path / "runs")
    assert (name, again.status) == ("onepass", 0), again.err
    found = [_without_validation(Path(record["out"])) for record in again.records]
    scored = [_without_validation(file.parent) for file in out.rglob("result.json")]
    assert len(found) == 2
    assert all(job in scored for job in found)


def _without_validation(folder: Path) -> dict[str, Any]:
    job = json.loads((folder / "run.json").read_text())["job"]
    return {name: value for name, value in job.items() if name != "validation"}


@pytest.mark.parametrize("objective", ["mean", "accuracy", "anytime"])
def test_a_trial_is_worth_the_mean_of_its_seeds_on_held_out_data(
    objective: str, space: Path, tmp_path: Path
) -> None:
    out = tmp_path / "search"
    done = tune(space, "--seeds", 2, "--objective", objective, out=out, trials=1)
    assert done.status == 0, done.err
    found = results(out)
    assert [entry["seed"] for entry in found] == [0, 1]
    assert all("validation=0.1" in entry["variant"] for entry in found)
    assert all(
        entry["samples"][1] == [6] * 10 for entry in found
    )  # a tenth of 60 each, no test image
    values = {
        "accuracy": [entry["accuracy"] for entry in found],
        "anytime": [entry["anytime_accuracy"] for entry in found],
        "mean": [(entry["accuracy"] + entry["anytime_accuracy"]) / 2 for entry in found],
    }
    ((_, state, value),) = tried(out)
    assert (state, value) == ("COMPLETE", pytest.approx(sum(values[objective]) / 2))


def test_the_same_seed_tries_the_same(whole: Path, space: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        assert tune(space, "--seed", seed, out=tmp_path / name).status == 0
    assert tried(tmp_path / "a") == tried(whole)
    assert tried(tmp_path / "b") != tried(whole)
    assert len({json.dumps(settings) for settings, _, _ in tried(whole)}) == 3


def test_options_win_over_the_file_and_what_is_set_is_in_every_run(
    space: Path, tmp_path: Path
) -> None:
    space.write_text(SPACE + "memory = 30\nset = {replay = 16, head = 'frozen'}\nseeds = 2\n")
    out = tmp_path / "search"
    done = tune(space, "--memory", 20, "--set", "replay=8", out=out, trials=1)
    assert done.status == 0, done.err
    recorded = [json.loads(file.read_text())["learner"] for file in out.rglob("run.json")]
    kept = [(entry["memory"], entry["replay"], entry["head"]) for entry in recorded]
    assert kept == [(20, 8, "frozen")] * 2
    best = tomllib.loads((out / "best.toml").read_text())
    assert (best["replay"], best["head"]) == (8, "frozen")


def test_settings_that_come_again_are_not_run_again(tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text(SPACE.replace("lr = {low = 1e-4, high = 1e-2, log = true}", ""))
    done = tune(space, out=tmp_path / "search", trials=6)
    assert done.status == 0, done.err
    trials = tried(tmp_path / "search")
    assert len(trials) == 6
    values = {settings["loss"]: value for settings, _, value in trials}
    assert all(value == values[settings["loss"]] for settings, _, value in trials)
    assert len(results(tmp_path / "search")) == len(values)


def test_trials_that_are_worse_than_most_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "FEWEST_COMPLETE", 1)
    space = tmp_path / "space.toml"
    space.write_text(
        SPACE.replace("{low = 1e-4, high = 1e-2, log = true}", "{low=1e-8, high=1e-3, log=true}")
    )
    done = tune(space, out=tmp_path / "search", trials=6)
    assert done.status == 0, done.err
    rates = {state: [] for state in ("COMPLETE", "PRUNED")}
    for settings, state, _ in tried(tmp_path / "search"):
        rates[state].append(float(settings["lr"]))
    assert 0 < len(rates["PRUNED"]) < 6
    assert max(rates["PRUNED"]) < max(rates["COMPLETE"])
    assert f"6 trials, {len(rates['PRUNED'])} stopped early" in done.err
    assert tomllib.loads(done.out)["lr"] in rates["COMPLETE"]


@pytest.mark.parametrize(
    ("name", "good", "bad", "said"),
    [("lr", "0.001", "1e+38", "diverged"), ("replay", "64", "1000000000000", "enough RAM")],
)
def test_settings_that_cannot_be_run_cost_a_trial_and_not_the_search(
    name: str, good: str, bad: str, said: str, tmp_path: Path
) -> None:
    space = tmp_path / "space.toml"
    space.write_text(
        SPACE.replace("lr = {low = 1e-4, high = 1e-2, log = true}", f"{name} = [{good}, {bad}]")
    )
    done = tune(space, out=tmp_path / "search", trials=6)
    assert done.status == 0, done.err
    states = {settings[name]: state for settings, state, _ in tried(tmp_path / "search")}
    assert states == {good: "COMPLETE", bad: "PRUNED"}
    assert "could not be run" in done.err and said in done.err
    assert str(tomllib.loads(done.out)[name]) == good


def test_a_search_in_which_nothing_can_be_run_fails(tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text(SPACE.replace("{low = 1e-4, high = 1e-2, log = true}", "[1e37, 1e38]"))
    done = tune(space, out=tmp_path / "search", trials=2)
    assert done.status == 1
    assert "no trial has run to its end" in done.error
    assert not (tmp_path / "search/best.toml").exists()


# ---- stopping and going on


def test_more_trials_go_on_where_fewer_have_ended(whole: Path, space: Path, tmp_path: Path) -> None:
    assert tune(space, out=tmp_path / "search", trials=2).status == 0
    before = read_files(tmp_path / "search/runs")
    assert tune(space, out=tmp_path / "search").status == 0
    with_all = read_files(tmp_path / "search/runs")
    assert before.items() <= with_all.items()
    assert tried(tmp_path / "search") == tried(whole)
    again = tune(space, out=tmp_path / "search")
    assert (again.status, again.out) == (0, (tmp_path / "search/best.toml").read_text())
    assert read_files(tmp_path / "search/runs") == with_all


def test_an_interrupt_says_how_to_go_on(
    whole: Path, space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls = tmp_path / "search", iter(range(100))
    real = pruning.Reporter.scored

    def interrupted(reporter: pruning.Reporter, point: Any) -> None:
        real(reporter, point)
        if next(calls) == 14:  # in the second trial
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pruning.Reporter, "scored", interrupted)
        done = tune(space, out=out)
    assert done.status == 130
    assert "the same command continues" in done.err
    assert [state for _, state, _ in tried(out)] == ["COMPLETE", "RUNNING"]
    assert tune(space, out=out).status == 0
    assert tried(out) == tried(whole)


KILLED = """
import os, signal, sys
from onepass.tuning import {module}
real, calls = {module}.{name}, iter(range(1, 100))
def dies(*arguments):
    if next(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
{module}.{name} = dies
from onepass.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        ("pruning", "Reporter.scored", 15),
        pytest.param("study", "Space.texts", 2, marks=pytest.mark.slow),
        pytest.param("study", "Study.tell", 2, marks=pytest.mark.slow),
    ],
    ids=["in a run", "while a trial is asked for", "before its end is told"],
)
def test_a_search_that_was_killed_ends_as_one_that_was_not(
    module: str, name: str, call: int, whole: Path, space: Path, tmp_path: Path
) -> None:
    out = tmp_path / "search"
    code = KILLED.format(module=module, name=name, call=call)
    arguments = command(*asked(space, out=out))[3:]
    died = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    done = tune(space, out=out)
    assert done.status == 0, done.err
    assert tried(out) == tried(whole)
    assert all(entry.state.is_finished() for entry in Study(out / "study.db").study.get_trials())


def test_a_full_disk_stops_the_search_and_costs_no_trial(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "search"
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        done = tune(space, out=out)
    assert done.status == 2
    assert "No space" in done.error
    assert [state for _, state, _ in tried(out)] == ["RUNNING"]
    assert tune(space, out=out).status == 0
    assert [state for _, state, _ in tried(out)] == ["COMPLETE"] * 3


@pytest.mark.slow  # processes are tested with the executors
def test_several_at_a_time_try_as_many(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    out = tmp_path / "search"
    done = tune(space, "--jobs", 2, "--seeds", 2, out=out)
    assert done.status == 0, done.err
    assert [state for _, state, _ in tried(out)] == ["COMPLETE"] * 3
    assert len(results(out)) == 6
    found = {entry["variant"]: entry["accuracy"] for entry in results(out) if entry["seed"] == 0}
    alone = onepass(
        "run", "er", "--settings", out / "best.toml", *RUN, "--out", tmp_path / "alone"
    ).record
    assert alone["accuracy"] in found.values()


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--memory", 50], "another memory: 100, not 50"),
        (["--set", "replay=8"], "another set"),
        (["--objective", "accuracy"], "another objective"),
        (["--seeds", 2], "another seeds"),
        (["--seed", 7], "another seed"),
        (["--validation", 0.2], "another validation"),
        (["--dataset", "digits"], "another dataset"),
    ],
)
def test_a_search_with_other_options_is_not_gone_on_with(
    arguments: list[object], said: str, whole: Path, space: Path
) -> None:
    done = tune(space, *arguments, out=whole, trials=9)
    assert done.status == 2
    assert said in done.error
    assert len(tried(whole)) == 3


def test_a_search_of_another_space_is_not_gone_on_with(whole: Path, space: Path) -> None:
    space.write_text(SPACE.replace("1e-4", "2e-4"))
    done = tune(space, out=whole, trials=9)
    assert (done.status, "another space" in done.error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--validation", 0], "never on the test set"),
        (["--validation", 1], "never on the test set"),
        (["--objective", "forgetting"], "accuracy"),
        (["--set", "lr=1"], "'lr' is searched"),
        (["--every", 5], "too seldom"),
        (["--preset", "official"], "preset"),
        (["--dataset", "none"], "none"),
        (["--jobs", "many"], "--jobs"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(
    arguments: list[object], said: str, space: Path, tmp_path: Path
) -> None:
    done = tune(space, *arguments, out=tmp_path / "search")
    assert done.status == 2
    assert said in done.error
    assert not (tmp_path / "search/runs").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[extra]", "'extra'"),
        ("memry = 3", "Did you mean 'memory'"),
        ("memory = 'much'", "memory must be a whole number"),
        ("memory = -1", "memory must be at least 0"),
        ("seeds = 0", "seeds must be at least 1"),
        ("set = 3", "set must be"),
        ("set = {replay = 'all'}", "replay must be a whole number"),
        ("class-order = 'none'", "class-order must be"),
    ],
)
def test_options_in_a_file_are_checked(more: str, said: str, space: Path, tmp_path: Path) -> None:
    space.write_text(f"{SPACE}{more}\n")
    done = tune(space, out=tmp_path / "search")
    assert done.status == 2
    assert said in done.error


def test_an_end_of_a_range_that_the_method_refuses_is_told_before_anything_runs(
    space: Path, tmp_path: Path
) -> None:
    space.write_text(SPACE.replace("low = 1e-4, high = 1e-2, log = true", "low = -1, high = 1"))
    done = tune(space, out=tmp_path / "search")
    assert (done.status, "lr must be" in done.error) == (2, True)
    assert not (tmp_path / "search").exists()


def test_two_searches_in_one_folder_are_refused(space: Path, tmp_path: Path) -> None:
    out = tmp_path / "search"
    out.mkdir()
    with fileio.locked_file(out / ".lock", wait=False):
        done = tune(space, out=out)
    assert (done.status, "another process" in done.error) == (2, True)


@pytest.mark.parametrize("kind", ["text", "link", "folder"])
def test_a_file_that_is_no_study_is_one_line(kind: str, space: Path, tmp_path: Path) -> None:
    out = tmp_path / "search"
    out.mkdir()
    file, other = out / "study.db", tmp_path / "other.db"
    if kind == "text":
        file.write_text("no database" * 100)
    elif kind == "link":
        file.symlink_to(other)
    else:
        file.mkdir()
    done = tune(space, out=out)
    assert done.status == 2
    assert str(file) in done.error
    assert not other.exists()


def test_without_optuna_it_says_what_to_install(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = tune(space, out=tmp_path / "search")
    assert done.status == 2
    assert "pip install optuna" in done.error


# ---- run --settings


def test_set_wins_over_a_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("lr = 2e-3\nloss = 'mean'\nprecision = 'bf16'\n")
    given = ("--settings", file, "--set", "lr=5e-4", "--engine", "eager")
    record = onepass("run", "er", *given, *RUN, "--out", tmp_path / "runs").record
    learner = json.loads(Path(record["out"], "run.json").read_text())["learner"]
    wanted = {"lr": 5e-4, "loss": "mean", "engine": "eager", "precision": "bf16"}
    assert {name: learner[name] for name in wanted} == wanted


def test_a_file_of_settings_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    for content, said in (("lrr = 1", "'lr'"), ("[lr]", "lr must be"), ("lr", "not TOML")):
        file.write_text(content)
        done = onepass("run", "er", "--settings", file, *RUN, "--out", tmp_path / "runs")
        assert done.status == 2
        assert said in done.error
        assert not (tmp_path / "runs").exists()


def test_a_search_on_data_of_ones_own_goes_on_where_they_were_moved_to(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 30)
    rows = (rng.normal(size=(120, 5)) + labels[:, None]).astype(np.float32)
    space, data = tmp_path / "space.toml", tmp_path / "mine.npz"
    np.savez(data, train_x=rows, train_y=labels, test_x=rows[:40], test_y=labels[:40])
    for trials, place in ((1, data), (2, data.with_name("moved.npz"))):
        data = data.rename(place)
        asked_of = SPACE.replace('"synthetic"', f'"{place}"').replace("batch = 60", "tasks = 2")
        space.write_text(asked_of)
        done = tune(space, out=tmp_path / "search", trials=trials)
        assert done.status == 0, done.err
    assert [state for _, state, _ in tried(tmp_path / "search")] == ["COMPLETE"] * 2
