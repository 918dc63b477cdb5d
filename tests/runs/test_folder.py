"""The folder of a run: its files, and that its numbers follow from its events."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from command import events, file_names, onepass

import onepass as package
from onepass.base import fileio
from onepass.base.checksum import sha256
from onepass.base.settings import setting_names
from onepass.learning import registry
from onepass.runs.execute import run_job
from onepass.runs.folder import RunFolder
from onepass.runs.spec import Job

ROOT = Path(__file__).parents[2]
PLAIN = ("er", "--memory", 50)
ODD = ("er", "--memory", 5, "--tasks", 3, "--class-order", "shuffled", "--every", 9)
JOINT = ("joint",)


@pytest.fixture(scope="module", params=[PLAIN, ODD, JOINT], ids=["plain", "odd", "joint"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    arguments = ("--dataset", "synthetic", "--device", "cpu", "--json", "--out", out)
    done = onepass("run", *request.param, *arguments)
    assert done.status == 0, done.err
    return Path(done.record["out"])


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def test_a_finished_folder_holds_its_files_and_no_others(folder: Path) -> None:
    assert file_names(folder) == {
        "run.json",
        "events.jsonl",
        "checkpoint.pt",
        "result.json",
        "log.txt",
    }


# ---- run.json


def test_the_run_is_described_with_every_setting_resolved(folder: Path) -> None:
    run = read(folder, "run.json")
    job, learner = run["job"], run["learner"]
    memory = f"-m{job['memory']}" if "memory" in job else ""
    assert f"{job['method']}-synthetic{memory}-s{job['seed']}" in folder.name
    assert set(learner) == set(setting_names(registry.get(job["method"]).learner))
    assert learner["seed"] == job["seed"] == run["stream"]["seed"]
    assert learner["lr"] == (1e-3 if job["method"] == "joint" else 5e-4)  # er has the preset tuned
    assert len(learner["mean"]) == len(learner["std"]) == 3
    assert run["class_names"] == [f"class{label}" for label in range(10)]
    labels = [label for task in run["stream"]["classes"] for label in task]
    assert sorted(labels) == list(range(10))


def test_the_run_is_described_with_versions_and_device(folder: Path) -> None:
    run = read(folder, "run.json")
    assert run["onepass"] == package.__version__
    assert (run["torch"], run["numpy"]) == (torch.__version__, np.__version__)
    assert run["job"]["device"] == read(folder, "result.json")["device"] == "cpu"
    assert run["gpu"] is None
    assert run["started"].endswith("+00:00")


def test_the_run_is_described_with_its_commit(folder: Path) -> None:
    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(ROOT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    run = read(folder, "run.json")
    assert run["commit"] == git("rev-parse", "HEAD")
    status = git("status", "--porcelain")
    assert run["dirty"] == (None if status is None else bool(status))


# ---- events.jsonl


def test_events_are_scored_points_in_order(folder: Path) -> None:
    run, points = read(folder, "run.json"), events(folder)
    steps = [point["step"] for point in points]
    assert steps == sorted(set(steps))
    assert steps[-1] == run["steps"]
    every = run["job"].get("every") or run["steps"] // 20
    ends = [point["step"] for point in points if point["boundary"]]
    assert steps == sorted({*range(every, run["steps"] + 1, every), *ends})
    assert len(ends) == len(run["stream"]["classes"])
    seconds = [point["seconds"] for point in points]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


def test_only_the_classes_seen_so_far_are_tested(folder: Path) -> None:
    tasks = read(folder, "run.json")["stream"]["classes"]
    for point in events(folder):
        if point["boundary"]:
            seen = {label for task in tasks[: point["task"] + 1] for label in task}
            assert point["total"] == [20 if label in seen else 0 for label in range(10)]
        assert all(0 <= c <= n for c, n in zip(point["correct"], point["total"], strict=True))


# ---- result.json, recomputed


def test_accuracy_follows_from_the_events(folder: Path) -> None:
    result, last = read(folder, "result.json"), events(folder)[-1]
    assert result["accuracy"] == 100 * sum(last["correct"]) / 200
    assert result["class_accuracy"] == [100 * hits / 20 for hits in last["correct"]]
    assert (result["steps"], result["seconds"]) == (last["step"], last["seconds"])


def test_the_accuracy_matrix_is_lower_triangular_and_follows_from_the_events(folder: Path) -> None:
    tasks = read(folder, "run.json")["stream"]["classes"]
    matrix = read(folder, "result.json")["accuracy_matrix"]
    ends = [point for point in events(folder) if point["boundary"]]
    assert len(matrix) == len(ends) == len(tasks)
    for i, row in enumerate(matrix):
        assert len(row) == len(tasks)
        for j, value in enumerate(row):
            if j > i:
                assert value is None
            else:
                hits = sum(ends[i]["correct"][label] for label in tasks[j])
                assert value == pytest.approx(100 * hits / (20 * len(tasks[j])))


def test_both_forgettings_follow_from_the_events(folder: Path) -> None:
    tasks, result = read(folder, "run.json")["stream"]["classes"], read(folder, "result.json")
    ends = [np.array(point["correct"]) / 20 for point in events(folder) if point["boundary"]]
    last = len(tasks) - 1
    drops = []
    for j in range(last):
        history = [100 * ends[i][tasks[j]].mean() for i in range(j, last + 1)]
        drops.append(max(history) - history[-1])
    if last:
        assert result["forgetting"] == pytest.approx(sum(drops) / last)
    else:
        assert result["forgetting"] is None
    assert result["forgetting_all_tasks"] == pytest.approx(sum(drops) / len(tasks))
    final = [100 * ends[-1][task].mean() for task in tasks]
    assert result["mean_task_accuracy"] == pytest.approx(mean(final))


def test_any_time_accuracy_is_the_mean_over_equally_spaced_points(folder: Path) -> None:
    run = read(folder, "run.json")
    every = run["job"].get("every") or run["steps"] // 20
    points = [point for point in events(folder) if point["step"] % every == 0]
    accuracies = [100 * sum(point["correct"]) / sum(point["total"]) for point in points]
    assert read(folder, "result.json")["anytime_accuracy"] == pytest.approx(mean(accuracies))


@pytest.mark.parametrize(("every", "known"), [(20, True), (21, False), (60, False)])
def test_any_time_accuracy_of_fewer_than_three_points_is_null_and_a_dash(
    every: int, known: bool, tmp_path: Path
) -> None:
    result = run_job(Job("er", "synthetic", every=every, device="cpu"), tmp_path)
    assert (read(Path(result.out), "result.json")["anytime_accuracy"] is not None) is known
    header, _, cells = onepass("table", tmp_path, "--format", "markdown").out.splitlines()
    row = dict(zip(header.split(" | "), cells.split(" | "), strict=True))
    assert (row["any-time"] == "-") is not known
    assert row["accuracy"] != "-"


def test_seconds_count_training_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict, pauses = package.ER.predict, []

    def slow(learner: package.ER, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        pauses.append(0.1)
        return predict(learner, x)

    monkeypatch.setattr(package.ER, "predict", slow)
    result = run_job(Job("er", "synthetic", batch=60, every=1, prequential=True), tmp_path)
    assert len(pauses) >= 15
    assert result.seconds < sum(pauses) / 2
    assert result.steps_per_second == result.steps / result.seconds


# ---- checkpoint.pt


def test_the_checkpoint_is_data_and_opens_as_the_learner_of_the_result(folder: Path) -> None:
    torch.load(folder / "checkpoint.pt", weights_only=True)
    learner, result = package.open(folder / "checkpoint.pt"), read(folder, "result.json")
    assert learner.params_sha256() == result["params_sha256"]
    assert learner.state_sha256() == result["state_sha256"]
    data = package.load("synthetic")
    hits = (learner.predict(data.test_x) == data.test_y).double().mean()
    assert 100 * float(hits) == pytest.approx(result["accuracy"])


# ---- files


def test_a_line_that_a_kill_cut_short_is_not_a_point(folder: Path, tmp_path: Path) -> None:
    text = (folder / "events.jsonl").read_text()
    (tmp_path / "events.jsonl").write_text(text + text[:50])
    assert RunFolder(tmp_path).points() == RunFolder(folder).points()


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no")

    path = tmp_path / "file.json"
    fileio.write_json(path, [1])
    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match="no"):
        fileio.write_json(path, [2])
    assert json.loads(path.read_text()) == [1]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, 23], [12, 3]),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}),
        ([[1], 2], [[1, 2]]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": "1"}),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
    ],
)
def test_datasets_that_differ_have_different_fingerprints(first: object, second: object) -> None:
    assert sha256(first) != sha256(second)


def test_the_fingerprint_depends_on_values_and_not_on_their_layout() -> None:
    square = torch.arange(6).view(2, 3)
    assert sha256(square.t()) == sha256(square.t().contiguous())
    assert sha256({"a": 1, "b": 2}) == sha256({"b": 2, "a": 1})
