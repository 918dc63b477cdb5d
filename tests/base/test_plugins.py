"""Tests of the user's own code: a module that the user names is imported, one that only a file
names is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from command import JOB, RUN, Done, onepass, process, refused
from isolated_registries import isolate_registries
from user_modules import unregister, write_modules

import onepass as package
from onepass import CheckpointError, InputError, data
from onepass.base import plugins
from onepass.learning import registry
from onepass.nets import NETWORKS
from onepass.runs.spec import Job

PACKAGE = Path(__file__).parents[2] / "examples/your_own_package"
OPTIONS = ("--dataset", "synthetic", "--batch", 60, "--device", "cpu", "--json")


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_modules(tmp_path, monkeypatch)


# ---- named by the user


def test_a_method_of_a_named_module_runs_and_its_checkpoint_opens_if_the_module_is_named(
    own_modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = onepass("run", "mine", "--import", "mymethod", *OPTIONS, "--out", tmp_path / "runs")
    assert done.status == 0, done.err
    folder = Path(done.record["out"])
    described = json.loads((folder / "run.json").read_text())
    assert (described["imports"], described["module"]) == (["mymethod"], "mymethod")
    unregister(monkeypatch, "mymethod")
    with pytest.raises(CheckpointError, match=r"'mine' of the module 'mymethod'.*--import my"):
        package.open(folder / "checkpoint.pt")
    assert "mymethod" not in sys.modules
    learner = package.open(folder / "checkpoint.pt", device="cpu", imports=["mymethod"])
    assert (learner.key, learner.state_sha256()) == ("mine", done.record["state_sha256"])


def test_a_run_of_a_changed_method_file_is_reused_only_on_demand(
    own_modules: Path, tmp_path: Path
) -> None:
    options = (*OPTIONS, "--preset", "common")  # as a sweep
    asked = ("run", "mine", "--import", "mymethod", *options, "--out", tmp_path / "runs")
    first = onepass(*asked)
    assert onepass(*asked, "--resume").record == first.record
    with (own_modules / "mymethod.py").open("a") as file:
        file.write("MORE = 1\n")
    assert "a method's file with the digest" in refused(*asked, "--resume")
    assert onepass(*asked, "--resume", "--anyway").record == first.record
    sweep = tmp_path / "a.toml"
    sweep.write_text(
        'import = "mymethod"\n[defaults]\nmethods = "mine"\ndataset = "synthetic"\nbatch = 60\n'
    )
    done = onepass("sweep", sweep, "--out", tmp_path / "runs", "--device", "cpu")
    assert "whose method's file has changed since are skipped: 1, such as mine" in done.err


def test_a_failing_import_is_a_one_line_error(own_modules: Path) -> None:
    (own_modules / "broken.py").write_text("import nowhere_at_all\n")
    (own_modules / "script.py").write_text("import sys\nsys.exit(7)\n")
    for module, told in {
        "nobody": "there is no module 'nobody'",
        "mymethod.py": "named as in Python",
        "broken": "'broken' cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_",
        "script": "'script' cannot be imported: SystemExit: 7",
    }.items():
        assert told in refused("run", "mine", "--import", module)


# ---- networks by reference


def test_a_function_by_reference_makes_the_network_and_draws_by_the_seed(
    own_modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = package.ER(net="mynets:wide", memory=5, device="cpu")
    learner.prepare((1, 3, 3), torch.uint8)
    assert learner.model.body[1].bias.tolist() == 7 * [0.25]
    done = onepass(*RUN, "--set", "net=mynets:wide", "--json", "--out", tmp_path / "runs")
    assert done.status == 0, done.err
    folder = Path(done.record["out"])
    assert json.loads((folder / "run.json").read_text())["learner"]["net"] == "mynets:wide"
    again = onepass(*RUN, "--set", "net=mynets:wide", "--json", "--out", tmp_path / "more")
    assert again.record["state_sha256"] == done.record["state_sha256"]  # drawn by the seed
    assert package.open(folder / "checkpoint.pt").model.head.weight.shape[1] == 7
    unregister(monkeypatch, "mynets")
    with pytest.raises(CheckpointError, match=r"'mynets:wide', which is code.*--import mynets"):
        package.open(folder / "checkpoint.pt")
    assert "mynets" not in sys.modules
    assert package.open(folder / "checkpoint.pt", imports=["mynets"]).steps == done.record["steps"]


@pytest.mark.parametrize(
    ("net", "told"),
    [
        ("mynets:narrow", "has no 'narrow'"),
        ("mynets:nn", "cannot be called"),
        ("json:dumps", "str"),
    ],
)
def test_a_reference_to_something_else_than_a_network_is_refused(
    net: str, told: str, own_modules: Path
) -> None:
    with pytest.raises(InputError, match=told):
        package.ER(net=net, memory=5).learn(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), [0, 1])


def test_a_file_cannot_make_us_import_code(own_modules: Path, tmp_path: Path) -> None:
    """Files of settings, search spaces and sweeps are refused if they name code, without importing
    it, unless the user names it too or a sweep lists it in `import`."""
    settings, space, sweep = (tmp_path / f"{name}.toml" for name in ("settings", "space", "sweep"))
    settings.write_text('net = "mynets:wide"\n')
    space.write_text('[space]\nlr = [0.1, 0.2]\nnet = ["mlp", "mynets:wide"]\n')
    sweep.write_text(
        '[defaults]\nmethods = "er"\ndataset = "synthetic"\nset = { net = "mynets:wide" }\n'
    )
    asked = (
        (*RUN, "--settings", settings, "--out", tmp_path / "runs"),
        ("tune", "er", "--space", space, "--trials", 1, "--out", tmp_path / "runs"),
        ("sweep", sweep, "--out", tmp_path / "runs"),
    )
    for words in asked:
        assert "'mynets:wide', which is code" in refused(*words)
    assert "mynets" not in sys.modules
    sweep.write_text(f'import = ["mynets"]\n{sweep.read_text()}')
    planned = onepass("sweep", sweep, "--dry-run", "--json", "--out", tmp_path / "runs")
    assert planned.status == 0, planned.err


def test_a_file_cannot_call_a_function_of_an_imported_module(
    tmp_path: Path,
) -> None:
    learner = package.ER(net="mlp", memory=5, device="cpu")
    learner.learn(torch.zeros(2, 3), [0, 1])
    learner.save(tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    content["settings"]["net"] = "os:_exit"
    torch.save(content, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="which is code"):
        package.open(tmp_path / "evil.pt")


# ---- installed packages


def installed(monkeypatch: pytest.MonkeyPatch, **methods: str) -> None:
    found = {name: EntryPoint(name, value, "onepass.methods") for name, value in methods.items()}
    monkeypatch.setattr(
        plugins, "installed_entry_points", lambda group: found if "methods" in group else {}
    )


def test_a_broken_package_is_a_warning_and_the_others_work(
    own_modules: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(own_modules)
    installed(monkeypatch, mine="mymethod:Mine", broken="nowhere:Broken", er="mymethod:Mine")
    known = [info.key for info in registry.methods()]
    assert "mine" in known and "broken" not in known
    (line,) = caplog.messages
    assert "'broken'" in line and "No module named 'nowhere'" in line
    with pytest.raises(InputError, match="'broken' of the package 'nowhere:Broken' cannot be load"):
        registry.get("broken")
    assert registry.get("er").learner is package.ER


def test_a_package_that_ends_the_process_is_a_broken_one(
    own_modules: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (own_modules / "script.py").write_text("import sys\nsys.exit(7)\n")
    monkeypatch.syspath_prepend(own_modules)
    installed(monkeypatch, broken="script:Broken")
    assert "er" in [info.key for info in registry.methods()]
    (line,) = caplog.messages
    assert "'broken'" in line and "SystemExit: 7" in line


def test_a_package_that_does_not_register_its_name_is_an_error(
    own_modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(own_modules)
    installed(monkeypatch, other="mymethod:Mine")
    with pytest.raises(InputError, match="mymethod:Mine did not register the method 'other'"):
        registry.get("other")


def test_installed_packages_are_searched_only_for_names_that_are_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(group: str) -> None:
        raise AssertionError(f"{group} was looked for")

    monkeypatch.setattr(plugins, "installed_entry_points", asked)
    assert JOB.with_data(data.load("synthetic")).folder_name
    stream, learner = JOB.make(data.load("synthetic"))
    learner.prepare(stream.dataset.train_x.shape[1:], torch.uint8)
    with pytest.raises(AssertionError, match=r"onepass\.methods was looked for"):
        registry.get("nothing")


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "a,b", "a=b", "a\\b"])
def test_a_name_cannot_contain_separators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_registries(monkeypatch, NETWORKS)
    with pytest.raises(InputError, match="cannot be a net's name"):
        NETWORKS.add(name, NETWORKS["mlp"], defined=Job)


# ---- other processes


def call(target: Path, *arguments: object, cwd: Path) -> Done:
    here = os.pathsep.join([str(target), str(PACKAGE.parents[2])])
    return process(*arguments, cwd=cwd, env={**os.environ, "PYTHONPATH": here})


@pytest.mark.slow
def test_workers_import_what_a_sweep_names(own_modules: Path, tmp_path: Path) -> None:
    """The checkpoints of their runs open."""
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'import = ["mymethod", "mynets"]\n[defaults]\nmethods = "mine"\ndataset = "synthetic"\n'
        'batch = 60\nseeds = 2\nset = { net = "mynets:wide" }\n'
    )
    words = ("sweep", sweep, "--jobs", 2, "--device", "cpu", "--out", tmp_path / "runs", "--json")
    done = process(*words, cwd=own_modules)
    assert done.status == 0, done.err
    assert sorted(record["seed"] for record in done.records) == [0, 1]
    again = process(*words, cwd=own_modules)
    assert "0 finished, 2 skipped" in again.err


@pytest.mark.slow
def test_an_installed_package_adds_an_entry_of_each_kind(tmp_path: Path) -> None:
    target = tmp_path / "target"
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile")
    where = ("--no-build-isolation", "--target", target, PACKAGE)
    made = subprocess.run([*pip, *map(str, where)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert "small-conv" in call(target, "list", "networks", cwd=tmp_path).out
    words = ("weighted-er", "--json", "--device", "cpu", "--out", "runs")
    rings = call(
        target, "run", *words, "--dataset", "rings", "--stream", "one-by-one", cwd=tmp_path
    )
    assert rings.status == 0, rings.err
    assert (rings.record["dataset"], len(rings.record["accuracy_matrix"])) == ("rings", 6)
    several = ("--seeds", 2, "--jobs", 2, "--set", "net=small-conv", "--dataset", "synthetic")
    images = call(target, "run", *words, *several, cwd=tmp_path)
    assert len(images.records) == 2, images.err
    checked = call(target, "check", "weighted-er", cwd=tmp_path)
    assert checked.status == 0, checked.out
    gone = process("predict", Path(images.records[0]["out"]) / "checkpoint.pt", ".", cwd=tmp_path)
    assert gone.status == 2 and "your_own.method" in gone.error
