"""`onepass run` and its help: options, output and results."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from command import Done, events, file_names, onepass, process, read_files, untouched
from PIL import Image

import onepass as package
from onepass import report
from onepass.base.settings import Preset
from onepass.learning import registry
from onepass.runs import query
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job

KEYS = [
    "method",
    "dataset",
    "memory",
    "seed",
    "accuracy",
    "forgetting",
    "learning_accuracy",
    "newest_accuracy",
    "accuracy_matrix",
    "steps",
    "seconds",
    "steps_per_second",
    "device",
    "params_sha256",
    "state_sha256",
    "out",
]
ABOVE_THE_DIAGONAL = [[j > i for j in range(5)] for i in range(5)]
SAME = ("params_sha256", "state_sha256", "accuracy", "forgetting", "steps")


def run(*arguments: object, out: Path) -> Done:
    return onepass("run", *arguments, "--device", "cpu", "--json", "--out", out)


def quick(*arguments: object, out: Path) -> tuple[dict, Path]:
    """Returns a run of seconds, with its JSON and its folder."""
    done = run(*arguments, "--dataset", "synthetic", out=out)
    assert done.status == 0, done.err
    return done.record, Path(done.record["out"])


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return run("finetune", "er", "gsa", "--seeds", 2, out=tmp_path_factory.mktemp("several"))


# ---- the default job


def test_the_default_job_ends_with_a_table_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = onepass("run", "gsa")
    assert done.status == 0, done.err
    rows = [line.split() for line in done.out.splitlines() if line.strip()]
    assert {"method", "accuracy", "forgetting", "n", "steps/s"} <= set(rows[0])
    assert rows[1][:5] == ["gsa", "tuned", "mirror=false", "digits", "100"]
    assert "runs/gsa-digits-m100-s0" in done.out
    picture = tmp_path / done.out.split("picture")[1].strip()
    with Image.open(picture) as image:
        assert image.format == "PNG"
        image.load()
        assert min(image.size) > 300


@pytest.mark.slow
def test_the_same_command_gives_the_same_bits_in_another_process(
    tmp_path: Path, several: Done
) -> None:
    asked = ("gsa", "--preset", "common", "--seed", 1)
    done = process("run", *asked, "--device", "cpu", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    (here,) = [entry for entry in several.records if (entry["method"], entry["seed"]) == ("gsa", 1)]
    assert [done.record[key] for key in SAME] == [here[key] for key in SAME]


# ---- JSON


def test_json_is_one_object_for_each_run_in_the_order_asked(several: Done) -> None:
    assert several.status == 0, several.err
    asked = [(method, seed) for method in ("finetune", "er", "gsa") for seed in (0, 1)]
    assert [(entry["method"], entry["seed"]) for entry in several.records] == asked


def test_json_has_exactly_the_promised_keys(several: Done) -> None:
    for record in several.records:
        assert list(record) == KEYS
        assert record["dataset"] == "digits"
        assert record["memory"] == (0 if record["method"] == "finetune" else 100)
        assert 0 <= record["accuracy"] <= 100
        assert 0 <= record["forgetting"] <= 100
        matrix = record["accuracy_matrix"]
        assert record["newest_accuracy"] == matrix[-1][-1]
        learned = [row[task] for task, row in enumerate(matrix)]
        assert record["learning_accuracy"] == pytest.approx(mean(learned))
        assert [[value is None for value in row] for row in matrix] == ABOVE_THE_DIAGONAL
        assert mean(matrix[-1]) == pytest.approx(record["accuracy"], abs=1)  # over unequal tasks
        assert record["steps"] == 146
        assert record["steps_per_second"] == pytest.approx(record["steps"] / record["seconds"])
        assert record["device"] == "cpu"
        assert all(len(record[key]) == 64 for key in ("params_sha256", "state_sha256"))
        assert (Path(record["out"]) / "result.json").exists()


def test_progress_goes_to_standard_error(several: Done) -> None:
    assert "gsa seed 1" in several.err


def test_seeds_and_methods_differ(several: Done) -> None:
    assert len({entry["params_sha256"] for entry in several.records}) == 6
    assert len({entry["state_sha256"] for entry in several.records}) == 6


def test_replay_beats_forgetting_by_far(several: Done) -> None:
    best = {
        method: max(entry["accuracy"] for entry in several.records if entry["method"] == method)
        for method in ("finetune", "er", "gsa")
    }
    assert best["finetune"] < 35 < 70 < min(best["er"], best["gsa"])


def test_the_seed_option_is_the_first_of_the_seeds(tmp_path: Path) -> None:
    done = run("er", "--dataset", "synthetic", "--seed", 3, "--seeds", 2, out=tmp_path)
    assert [entry["seed"] for entry in done.records] == [3, 4]


# ---- settings


def test_set_changes_what_is_learned_and_is_recorded(tmp_path: Path) -> None:
    plain, _ = quick("er", out=tmp_path)
    chosen, folder = quick("er", "--set", "lr=5e-4", "--set", "loss=mean", out=tmp_path)
    learner = read(folder, "run.json")["learner"]
    assert (learner["lr"], learner["loss"]) == (5e-4, "mean")
    assert chosen["params_sha256"] != plain["params_sha256"]


def test_every_kind_of_setting_can_be_given_as_text(tmp_path: Path) -> None:
    options = ("mirror=true", "fill=none", "mean=(0.5,)", "std=(0.2,)", "optimizer=sgd", "gap=3")
    given = [word for option in options for word in ("--set", option)]
    _, folder = quick("gsa", *given, out=tmp_path)
    learner = read(folder, "run.json")["learner"]
    wanted = {"mirror": True, "fill": None, "mean": [0.5], "std": [0.2], "gap": 3}
    assert {name: learner[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("methods", "options", "preset"),
    [
        (["er"], [], "tuned"),
        (["er", "finetune"], [], "common"),
        (["finetune"], [], "common"),  # it has no tuned settings
        (["er"], ["--preset", "common"], "common"),
        (["er", "gsa"], ["--preset", "tuned"], "tuned"),
    ],
)
def test_one_method_runs_tuned_and_several_common_unless_a_preset_is_named(
    methods: list[str], options: list[str], preset: str, tmp_path: Path
) -> None:
    small = ("--dataset", "synthetic", "--batch", 60, "--device", "cpu")
    done = onepass("run", *methods, *small, *options, "--out", tmp_path)
    assert done.status == 0, done.err
    assert done.err.startswith(f"preset {preset}")
    named = "Preset: common, where a row names no other" in done.out
    assert (named, " tuned " in done.out) == (preset == "common", preset == "tuned")
    for run_ in query.find_results(tmp_path):
        assert run_.variant.get("preset", "common") == preset


def test_common_makes_no_variant(tmp_path: Path) -> None:
    _, folder = quick("er", "--preset", "common", out=tmp_path)
    assert folder.name == "er-synthetic-m100-s0"
    assert read(folder, "result.json")["variant"] == ""


@pytest.mark.parametrize(("dataset", "mirrored"), [("digits", False), ("mine", True)])
def test_tuned_mirrors_where_a_mirrored_image_is_of_its_class(
    dataset: str, mirrored: bool, tmp_path: Path, own_images: Path
) -> None:
    where = own_images if dataset == "mine" else dataset
    done = onepass("run", "er", "--dataset", where, "--batch", 60, "--json", "--out", tmp_path)
    assert done.status == 0, done.err
    assert read(Path(done.record["out"]), "run.json")["learner"]["mirror"] is mirrored


def test_a_default_learner_of_gsa_is_that_of_its_default_run_on_digits(tmp_path: Path) -> None:
    done = onepass("run", "gsa", "--batch", 60, "--json", "--device", "cpu", "--out", tmp_path)
    data = package.load("digits")
    learner = package.GSA(memory=100, seed=0, mean=data.mean, std=data.std, device="cpu")
    for _ in package.evaluate(learner, package.ClassIncremental(data, tasks=5, batch=60, seed=0)):
        pass
    assert learner.params_sha256() == done.record["params_sha256"]


@pytest.fixture
def own_images(tmp_path: Path) -> Path:
    data = package.load("synthetic")
    parts = {name: getattr(data, name) for name in ("train_x", "train_y", "test_x", "test_y")}
    np.savez(tmp_path / "signs.npz", **parts)
    return tmp_path / "signs.npz"


def test_data_of_ones_own_are_told_to_be_other_ones_in_a_mirror(
    tmp_path: Path, own_images: Path
) -> None:
    job = ("gdumb", "--preset", "official", "--set", "epochs=1", "--dataset", own_images)
    assert run(*job, "--batch", 60, out=tmp_path).status == 0
    done = run(*job, "--mirror-is-another-class", out=tmp_path / "other")
    assert done.status == 2
    assert "--set mirror=false" in done.error


def test_normalising_by_the_first_task_is_recorded(tmp_path: Path) -> None:
    plain, whole = quick("er", "--batch", 60, out=tmp_path)
    first, folder = quick("er", "--batch", 60, "--normalise", "first-task", out=tmp_path)
    assert plain["params_sha256"] != first["params_sha256"]
    assert read(folder, "result.json")["normalise"] == "first-task"
    assert read(folder, "run.json")["learner"]["mean"] != read(whole, "run.json")["learner"]["mean"]


def test_a_preset_gives_settings_and_set_overrides_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = Preset({"lr": 5e-4, "loss": "mean"}, "this test")
    monkeypatch.setattr(package.ER, "presets", {"tuned": tuned})
    _, folder = quick("er", "--preset", "tuned", "--set", "lr=2e-3", out=tmp_path)
    learner = read(folder, "run.json")["learner"]
    assert (learner["lr"], learner["loss"]) == (2e-3, "mean")


LONG = ("gdumb", "gss", "ocm")  # with their authors' settings
PRESETS = [
    pytest.param(info.key, name, marks=[pytest.mark.slow] * (info.key in LONG))
    for info in registry.methods()
    for name in info.learner.presets
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "preset"), PRESETS)
def test_every_preset_can_be_run(method: str, preset: str, tmp_path: Path) -> None:
    wanted = registry.get(method).learner.presets[preset].settings
    mirrors = ("--set", "mirror=true") if wanted.get("mirror") else ()  # these data are not for it
    _, folder = quick(method, "--preset", preset, "--batch", 60, *mirrors, out=tmp_path)
    learner = read(folder, "run.json")["learner"]
    assert {name: learner[name] for name in wanted} == json.loads(json.dumps(wanted))


def test_engine_and_precision_are_settings_by_another_name(tmp_path: Path) -> None:
    asked = ("run", "finetune", "--dataset", "synthetic", "--device", "cpu", "--json", "--out")
    short = onepass(*asked, tmp_path / "a", "--precision", "bf16", "--engine", "eager").record
    pairs = ("--set", "precision=bf16", "--set", "engine=eager")
    long = onepass(*asked, tmp_path / "b", *pairs).record
    plain = onepass(*asked, tmp_path / "c", "--precision", "fp32", "--engine", "auto").record
    assert [short[key] for key in SAME] == [long[key] for key in SAME]
    assert Path(short["out"]).name == Path(long["out"]).name != Path(plain["out"]).name
    assert Path(plain["out"]).name == "finetune-synthetic-s0"
    assert plain["params_sha256"] != short["params_sha256"]
    for name, value in (("precision", "bf16"), ("engine", "eager")):
        done = onepass(*asked, tmp_path / "d", f"--{name}", value, "--set", f"{name}={value}")
        assert done.status == 2
        assert f"--{name}" in done.error
    done = onepass(*asked, tmp_path / "d", "--engine", "graph")
    assert (done.status, "GPU" in done.error) == (2, True)
    assert not (tmp_path / "d").exists()


# ---- the stream


def test_tasks_and_batch_cut_the_stream(tmp_path: Path) -> None:
    record, folder = quick("er", "--tasks", 2, "--batch", 25, out=tmp_path)
    assert record["steps"] == 24
    assert read(folder, "run.json")["stream"]["classes"] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert [event["step"] for event in events(folder) if event["boundary"]] == [12, 24]


def test_shuffled_classes_come_in_an_order_of_the_seed(tmp_path: Path) -> None:
    orders = []
    for seed in (0, 1):
        arguments = ("finetune", "--class-order", "shuffled", "--seed", seed)
        _, folder = quick(*arguments, out=tmp_path)
        tasks = read(folder, "run.json")["stream"]["classes"]
        orders.append([label for task in tasks for label in task])
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(10))
    assert list(range(10)) not in orders


@pytest.mark.parametrize("stream", ["long-tail:rho=10", "blurry:n=50,m=10"])
def test_other_streams_are_named_with_their_keys(stream: str, tmp_path: Path) -> None:
    plain, _ = quick("er", out=tmp_path)
    other, folder = quick("er", "--stream", stream, out=tmp_path)
    name, _, keys = stream.partition(":")
    recorded = read(folder, "run.json")["stream"]
    assert recorded["stream"] == name
    assert all(f"{recorded[key]:g}" == value for key, value in pairs(keys))
    assert other["params_sha256"] != plain["params_sha256"]


def pairs(keys: str) -> list[list[str]]:
    return [pair.split("=") for pair in keys.split(",")]


def test_every_says_when_the_learner_is_scored_and_changes_nothing_else(tmp_path: Path) -> None:
    plain, _ = quick("gsa", out=tmp_path)
    often, folder = quick("gsa", "--every", 7, out=tmp_path)
    steps = sorted({*range(7, 61, 7), 12, 24, 36, 48, 60})
    assert [event["step"] for event in events(folder)] == steps
    assert [often[key] for key in SAME] == [plain[key] for key in SAME]


def test_prequential_predicts_each_sample_before_it_is_learned(tmp_path: Path) -> None:
    plain, without = quick("er", out=tmp_path)
    scored, folder = quick("er", "--prequential", out=tmp_path)
    last = events(folder)[-1]
    result = read(folder, "result.json")
    assert last["tried"] == 600
    assert result["prequential_accuracy"] == 100 * last["hits"] / 600
    assert 20 < result["prequential_accuracy"] < 100
    assert read(without, "result.json")["prequential_accuracy"] is None
    assert [scored[key] for key in SAME] == [plain[key] for key in SAME]


def test_validation_scores_on_training_data_that_is_not_learned(tmp_path: Path) -> None:
    record, folder = quick("er", "--validation", "0.25", out=tmp_path)
    assert record["steps"] == 45
    assert events(folder)[-1]["total"] == [15] * 10


def test_checkpoint_none_keeps_no_checkpoint(tmp_path: Path) -> None:
    plain, folder = quick("er", out=tmp_path / "a")
    assert (folder / "checkpoint.pt").exists()
    record, folder = quick("er", "--checkpoint", "none", out=tmp_path / "b")
    assert file_names(folder) == {"run.json", "events.jsonl", "result.json", "log.txt"}
    assert record["state_sha256"] == plain["state_sha256"]


def test_joint_sees_one_task_and_forgets_nothing(tmp_path: Path) -> None:
    record, folder = quick("joint", out=tmp_path)
    assert record["forgetting"] is None
    assert len(read(folder, "run.json")["stream"]["classes"]) == 1
    assert [event["boundary"] for event in events(folder)].count(True) == 1


# ---- runs that exist


def test_an_existing_run_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    quick("er", out=tmp_path)
    with untouched(tmp_path):
        done = run("er", "--dataset", "synthetic", out=tmp_path)
    assert done.status == 2
    assert done.out == ""
    assert "er-synthetic-m100-s0" in done.error
    assert "--resume" in done.error


def test_a_finished_run_is_skipped_and_its_json_printed_again(tmp_path: Path) -> None:
    first = run("er", "--dataset", "synthetic", out=tmp_path)
    with untouched(tmp_path):
        again = run("er", "--dataset", "synthetic", "--resume", out=tmp_path)
    assert again.status == 0
    assert again.out == first.out


def test_resume_starts_what_is_missing(tmp_path: Path) -> None:
    first = run("er", "--dataset", "synthetic", out=tmp_path)
    both = run("er", "--dataset", "synthetic", "--seeds", 2, "--resume", out=tmp_path)
    assert both.status == 0
    assert both.records[0] == first.record
    assert both.records[1]["seed"] == 1


def test_runs_can_be_moved_and_resumed(tmp_path: Path) -> None:
    common = ("er", "--preset", "common")
    record, _ = quick(*common, out=tmp_path / "before")
    shutil.move(tmp_path / "before", tmp_path / "after")
    out = tmp_path / "after"
    arguments = ("--dataset", "synthetic", "--device", "cpu", "--out", out, "--resume")
    done = onepass("run", *common, *arguments)
    assert done.status == 0, done.err
    assert (out / "accuracy.png").exists()
    again, folder = quick(*common, "--resume", out=out)
    assert [again[key] for key in SAME] == [record[key] for key in SAME]
    assert folder == out / "er-synthetic-m100-s0"


def test_a_folder_with_other_settings_is_refused(tmp_path: Path) -> None:
    _, folder = quick("finetune", "--seed", 1, out=tmp_path)
    folder.rename(tmp_path / "finetune-synthetic-s0")
    with untouched(tmp_path):
        done = run("finetune", "--dataset", "synthetic", "--resume", out=tmp_path)
    assert done.status == 2
    assert "seed 1, not 0" in done.error


def test_other_settings_go_to_other_folders(tmp_path: Path) -> None:
    options = [(), ("--set", "lr=5e-4"), ("--tasks", 2), ("--batch", 20), ("--validation", 0.5)]
    folders = {quick("finetune", *option, out=tmp_path)[1] for option in options}
    assert len(folders) == len(options)


def test_a_folder_of_something_else_is_not_used(tmp_path: Path) -> None:
    theirs = tmp_path / "finetune-synthetic-s0"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years of work")
    with untouched(tmp_path):
        done = run("finetune", "--dataset", "synthetic", "--resume", out=tmp_path)
    assert done.status == 2
    assert "thesis.txt" in done.error


@pytest.mark.parametrize("methods", [("er", "gsaa"), ("er", "er")])
def test_a_bad_list_of_methods_is_refused_before_the_first_run(
    methods: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(*methods, "--dataset", "synthetic", out=tmp_path)
    assert done.status == 2
    assert done.error
    assert read_files(tmp_path) == {}


# ---- defaults


def test_the_defaults_of_run_are_those_of_a_job(tmp_path: Path) -> None:
    """Without options the command makes the same job as `Job` in Python."""
    done = onepass("run", "finetune", "--json", "--out", tmp_path, "--device", "cpu")
    recorded = read(Path(done.record["out"]), "run.json")
    job = RunResources().with_fingerprint(Job("finetune", device="cpu"))
    assert (recorded["job"], recorded["identity"]) == (job.identity_fields, job.identity)
    assert job.non_defaults == {}


# ---- what is printed


def test_paths_are_printed_as_they_are(tmp_path: Path) -> None:
    for name in ("run[bold]s", "ru:star:ns", "long" * 55):
        out = tmp_path / name
        done = onepass("run", "finetune", "--dataset", "synthetic", "--out", out)
        assert done.status == 0, done.err
        assert str(out / "finetune-synthetic-s0") in done.out
        assert str(out / "accuracy.png") in done.out


def test_a_missing_matplotlib_costs_the_picture_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "onepass.report.figures", raising=False)
    monkeypatch.delattr(report, "figures", raising=False)
    done = onepass("run", "finetune", "--dataset", "synthetic", "--out", tmp_path)
    assert done.status == 0, done.err
    assert "finetune" in done.out
    assert "picture" not in done.out
    assert "no picture" in done.err
