"""Progress on standard error: lines where it is no terminal, bars where it is. The log has the
lines in both cases."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from command import Done, onepass, process
from PIL import Image
from terminal import in_a_terminal, without_controls

from onepass.base import news
from onepass.base.news import Line
from onepass.cli.progress import Lines
from onepass.evaluation import schedule

SYNTHETIC = ("--dataset", "synthetic", "--device", "cpu")  # 60 steps
STEP = re.compile(r"step (\d+) of 60(, task \d: [\d.]+ %)?, \d+ s left")
# a module for `--import`: without pauses, even runs of a second have lines
NO_PAUSE = "from onepass.base import news\nnews.PAUSE = 0.0\n"
NOTE = "from onepass.evaluation import schedule\nschedule.LONG = 0\n"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets lines follow each other without a pause."""
    monkeypatch.setattr(news, "PAUSE", 0.0)


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, str]:
    """Returns an environment in which `--import hurry` is as the fixture `hurried`, and all runs
    count as long."""
    (tmp_path / "hurry.py").write_text(NO_PAUSE + NOTE)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def logged(out: Path, name: str) -> list[str]:
    """Returns the log of a run without the times."""
    lines = (out / name / "log.txt").read_text().splitlines()
    return [line.split(" ", 1)[1] for line in lines]


def told(done: Done, name: str) -> list[str]:
    """Returns the lines on standard error that a run has told."""
    start = f"{name}: "
    return [line.removeprefix(start) for line in done.err.splitlines() if line.startswith(start)]


def test_a_run_in_a_pipe_has_the_lines_of_its_log(tmp_path: Path, modules: dict[str, str]) -> None:
    arguments = (
        "run",
        "er",
        "--preset",
        "common",
        *SYNTHETIC,
        "--import",
        "hurry",
        "--out",
        tmp_path,
        "--json",
    )
    done = process(*arguments, env=modules)
    assert done.status == 0, done.err
    assert done.record["steps"] == 60, "nothing but JSON on standard output"
    lines = told(done, "er seed 0")
    assert ["started", *lines, "finished"] == logged(tmp_path, "er-synthetic-m100-s0")
    note, *steps = lines
    assert note.startswith("scores ") and "trained ones: about 0." in note
    assert all(STEP.fullmatch(line) for line in steps), steps
    assert [int(STEP.match(line)[1]) for line in steps] == list(range(3, 60, 3))
    assert "task 5: " in steps[-1], "the accuracy so far"


@pytest.mark.slow
def test_a_terminal_shows_bars_and_its_log_has_the_lines(
    tmp_path: Path, modules: dict[str, str]
) -> None:
    arguments = (
        "run",
        "er",
        "--preset",
        "common",
        *SYNTHETIC,
        "--import",
        "hurry",
        "--out",
        tmp_path,
    )
    seen = without_controls(in_a_terminal(100, *arguments, **{**modules, "TERM": "xterm-256color"}))
    assert "60/60" in seen
    assert not STEP.search(seen)
    lines = logged(tmp_path, "er-synthetic-m100-s0")
    assert seen.count("test images beside") == 1, "a note is for a terminal too"
    assert sum(bool(STEP.fullmatch(line)) for line in lines) == 19


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_runs_in_worker_processes_tell_their_parent(
    command: str, tmp_path: Path, modules: dict[str, str]
) -> None:
    (tmp_path / "a.toml").write_text(
        '[defaults]\ndataset = "synthetic"\nmethods = ["er"]\nseeds = 2'
    )
    alone = ("er", "--preset", "common", *SYNTHETIC, "--seeds", 2)
    jobs = {"run": alone, "sweep": (tmp_path / "a.toml",)}[command]
    options = ("--jobs", 2, "--import", "hurry", "--out", tmp_path / "out", "--json")
    done = process(command, *jobs, *options, env=modules)
    assert done.status == 0, done.err
    assert len(done.records) == 2
    names = [f"er-synthetic-m100-s{seed}" for seed in range(2)]
    shown = ["er seed 0", "er seed 1"] if command == "run" else names
    for name, run in zip(shown, names, strict=True):
        lines = [line for line in logged(tmp_path / "out", run) if STEP.fullmatch(line)]
        assert [line for line in told(done, name) if STEP.fullmatch(line)] == lines != []
    assert done.err.count("test images beside") == 1, "once for all seeds"
    assert command == "run" or "all runs: 2 of 2 ended" in done.err


@pytest.mark.usefixtures("hurried")
def test_a_search_has_lines_of_its_runs_and_trials(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text("[space]\nlr = {low = 1e-4, high = 1e-2, log = true}")
    files = ("--space", tmp_path / "space.toml", "--out", tmp_path / "search")
    done = onepass("tune", "er", *SYNTHETIC, *files, "--trials", 2)
    assert done.status == 0, done.err
    assert "er trials: 1 of 2 ended, best " in done.err
    for trial, folder in enumerate(sorted((tmp_path / "search/runs").iterdir())):
        lines = [line for line in logged(folder.parent, folder.name) if line.startswith("step")]
        assert lines
        trials = [told(done, f"trial {number} seed 0") for number in range(2)]
        assert lines in trials, trial


def test_a_short_run_prints_no_lines(tmp_path: Path) -> None:
    done = onepass("run", "finetune", *SYNTHETIC, "--out", tmp_path)
    assert told(done, "finetune seed 0") == []
    assert logged(tmp_path, "finetune-synthetic-s0") == ["started", "finished"]


@pytest.mark.usefixtures("hurried")
def test_a_method_that_trains_to_be_scored_says_how_far_it_is(tmp_path: Path) -> None:
    arguments = ("--set", "epochs=40", "--memory", 20, "--out", tmp_path)
    done = onepass("run", "gdumb", *SYNTHETIC, *arguments)
    assert done.status == 0, done.err
    passes = [line for line in told(done, "gdumb seed 0") if "pass" in line]
    assert passes[0].startswith("gdumb trains to be scored: pass 2 of 40, ")
    assert len(passes) == 19
    folder = tmp_path / "gdumb-synthetic-m20-s0-"
    (folder,) = tmp_path.glob("gdumb*")
    assert [line for line in logged(tmp_path, folder.name) if "pass" in line] == passes
    Image.fromarray(np.zeros((12, 12, 3), np.uint8)).save(tmp_path / "a.png")
    done = onepass("predict", folder / "checkpoint.pt", tmp_path / "a.png", "--json")
    assert done.record["path"] == str(tmp_path / "a.png")
    said = [line for line in done.err.splitlines() if line.startswith("gdumb trains")]
    assert len(said) == 19


def test_lines_of_many_runs_are_thinned_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty runs at once, each with a line every ten seconds, for six hours."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines, printed = Lines(many=True), []
    for second in range(0, 21600, 10):
        for run in range(20):
            now[0] = second + run / 2
            lines.show(f"run {run}", Line("step 1 of 9", "steps"))
        printed += [second] * capsys.readouterr().err.count("\n")
    assert 20 <= sum(second < 600 for second in printed) <= 120
    assert len(printed) <= 250


class Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_reader_that_has_gone_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    Lines(many=False).show("a run", Line("step 1 of 9", "steps"))


def test_a_long_run_that_is_resumed_says_its_cost_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "LONG", 0)
    options = (*SYNTHETIC, "--every", 20, "--out", tmp_path)
    first = onepass("run", "er", *options)
    again = onepass("run", "er", *options, "--resume")
    assert [done.err.count("test images beside") for done in (first, again)] == [1, 0]
