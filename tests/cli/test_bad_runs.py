"""Commands refuse bad checkpoints and run folders with one line and exit 2.

They write nothing by halves.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import JOB, RUN, finished_run, onepass, refused, untouched
from PIL import Image

from onepass.learning.checkpoint import file
from onepass.runs.execute import run_job
from onepass.runs.spec import Job


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def broken(finished: Path, tmp_path: Path) -> Path:
    """Copies a run without its result, so that resuming it reads its files."""
    out = tmp_path / "broken"
    shutil.copytree(finished, out)
    (out / JOB.folder_name / "result.json").unlink()
    return out


class Code:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def resumed(out: Path, *, method: str = "er") -> str:
    """Returns the line with which a damaged run is refused; its folder stays as it was."""
    with untouched(out):
        arguments = ("run", method, *RUN[2:], "--json", "--out", out, "--resume")
        return refused(*arguments)


@pytest.mark.parametrize("part", [0, 0.0001, 0.001, 0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_checkpoint_is_refused(part: float, broken: Path) -> None:
    path = broken / JOB.folder_name / "checkpoint.pt"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    assert str(path) in resumed(broken)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("not a checkpoint\n" * 50),
    "a list": lambda path: torch.save([1, 2], path),
    "a state dict": lambda path: torch.save({"weight": torch.zeros(2)}, path),
    "a module": lambda path: torch.save(torch.nn.Linear(2, 2), path),
    "an old torch file": lambda path: torch.save(
        {"weight": torch.zeros(2)}, path, _use_new_zipfile_serialization=False
    ),
    "an archive": lambda path: shutil.move(
        shutil.make_archive(str(path), "zip", path.parent), path
    ),
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"format": "onepass"})),
    "another version": lambda path: torch.save({"format": "onepass", "version": 99}, path),
    "only a name": lambda path: torch.save({"format": "onepass", "version": 1}, path),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_checkpoint_is_refused(kind: str, broken: Path) -> None:
    path = broken / JOB.folder_name / "checkpoint.pt"
    FOREIGN[kind](path)
    assert str(path) in resumed(broken)


@pytest.mark.parametrize("save", [torch.save, lambda c, p: p.write_bytes(pickle.dumps(c))])
def test_a_checkpoint_with_code_is_refused_and_the_code_does_not_run(
    save: Callable[[object, Path], object], broken: Path, tmp_path: Path
) -> None:
    path, made = broken / JOB.folder_name / "checkpoint.pt", tmp_path / "made"
    save({**file.read_checkpoint(path), "more": Code(made)}, path)
    assert str(path) in resumed(broken)
    assert not made.exists()


def test_a_checkpoint_with_code_is_refused_for_prediction_too(tmp_path: Path) -> None:
    path, made = tmp_path / "model.pt", tmp_path / "made"
    torch.save({"format": "onepass", "version": 1, "more": Code(made)}, path)
    assert str(path) in refused("predict", path, tmp_path)
    assert not made.exists()


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("class_names",), ["a"], "class_names"),
        (("class_names",), [1.5] * 10, "class_names"),
        (("state", "book", "labels"), [2**40, 1, 2, 3], "book.labels|class_names|new"),
        (("state", "optimizer", 0, "exp_avg"), torch.zeros(3), "optimizer.0.exp_avg"),
        (("state", "shape"), [3, 10**9, 10**9], "shape is"),
        (("state", "shape"), [3, 4000, 4000], "parts.store.x holds"),
    ],
)
def test_a_forged_checkpoint_is_refused_for_prediction(
    keys: tuple[Any, ...], value: object, said: str, finished: Path, tmp_path: Path
) -> None:
    content = file.read_checkpoint(finished / JOB.folder_name / "checkpoint.pt")
    *way, last = keys
    inside = content
    for key in way:
        inside = inside[key]
    inside[last] = value
    file.write_checkpoint(tmp_path / "model.pt", content)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    line = refused("predict", tmp_path / "model.pt", tmp_path / "one.png")
    assert str(tmp_path / "model.pt") in line
    assert any(word in line for word in said.split("|"))


def test_a_checkpoint_of_what_has_diverged_answers_no_question(
    finished: Path, tmp_path: Path
) -> None:
    content = file.read_checkpoint(finished / JOB.folder_name / "checkpoint.pt")
    content["state"]["model"]["head.bias"] *= np.nan
    file.write_checkpoint(tmp_path / "model.pt", content)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    done = onepass("predict", tmp_path / "model.pt", tmp_path / "one.png")
    assert (done.status, done.out) == (1, "")
    assert "the parameters of 'er' are not finite" in done.error


def test_a_checkpoint_of_another_method_is_refused(broken: Path) -> None:
    target = broken / JOB.folder_name / "checkpoint.pt"
    file.write_checkpoint(target, {**file.read_checkpoint(target), "method": "gsa"})
    line = resumed(broken)
    assert str(target) in line
    assert "gsa" in line


@pytest.mark.parametrize("other", [{"seed": 5}, {"memory": 50}, {"settings": {"lr": "5e-4"}}])
def test_a_checkpoint_of_the_same_method_with_other_settings_is_refused(
    other: dict[str, Any], broken: Path, tmp_path: Path
) -> None:
    result = run_job(Job("er", "synthetic", batch=30, **other), tmp_path / "other")
    target = broken / JOB.folder_name / "checkpoint.pt"
    shutil.copy(Path(result.out) / "checkpoint.pt", target)
    assert str(target) in resumed(broken)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("tick",), {"step": "x", "task": 0, "seconds": 0.0, "hits": 0, "tried": 0}),
        (("tick",), []),
        (("tick", "step"), 10**6),
        (("files",), []),
        (("files", "events"), []),
        (("files", "events"), {}),
        (("files", "events"), {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}),
        (("files", "events", "bytes"), 10**9),
        (("files", "../up"), {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}),
        (("states",), 3),
        (("dropped",), "x"),
        (("settings",), []),
        (("settings", "lrr"), 1),
        (("state",), {}),
        (("state",), []),
        (("state", "dtype"), "nope"),
        (("state", "shape"), [9]),
        (("state", "book"), {}),
        (("state", "model"), {}),
        (("state", "parts"), {}),
        (("state", "generators"), {}),
        (("method",), None),
    ],
    ids=str,
)
def test_a_checkpoint_with_a_damaged_part_is_refused(
    keys: tuple[str, ...], value: object, broken: Path
) -> None:
    path = broken / JOB.folder_name / "checkpoint.pt"
    content = file.read_checkpoint(path)
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    torch.save(content, path)
    assert str(path) in resumed(broken)


# ---- run folders


@pytest.mark.parametrize("name", ["run.json", "result.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"job": 3}', "\xff\xfe"])
def test_a_damaged_json_file_is_refused(name: str, text: str, broken: Path) -> None:
    path = broken / JOB.folder_name / name
    path.write_bytes(text.encode("latin-1"))
    assert str(path) in resumed(broken)


def test_a_damaged_result_is_refused_by_table_and_figure(broken: Path, tmp_path: Path) -> None:
    path = broken / JOB.folder_name / "result.json"
    path.write_text('{"method": "er"')
    with untouched(tmp_path):
        assert str(path) in refused("table", broken)
        assert str(path) in refused("figure", "accuracy", broken, "-o", tmp_path / "a.png")


def test_damaged_events_are_refused_by_figure(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "runs")
    path = tmp_path / "runs" / JOB.folder_name / "events.jsonl"
    path.write_text("what\n" + path.read_text())
    assert str(path) in refused("figure", "accuracy", tmp_path / "runs", "-o", tmp_path / "a.png")


DEEP = "[" * 100_000 + "]" * 100_000
WRONG = {
    "result.json": {"accuracy": "x", "memory": None, "accuracy_matrix": [1], "seed": 0.5,
                    "images_beside_steps": {"a": 1}, "variant": [], "dropped": 3, "out": {}},
    "run.json": {"probes": [[]], "torch": 3, "job": {"seed": 0}, "identity": "0f"},
    "events.jsonl": {"step": "x", "correct": 3, "total": [0] * 10, "boundary": None, "what": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_values_of_wrong_types_and_absurd_nesting_are_one_line_that_names_the_file(
    name: str, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    shutil.copytree(finished, out)
    path = out / JOB.folder_name / name
    line, *others = path.read_text().splitlines() if name == "events.jsonl" else [path.read_text()]
    content = json.loads(line)
    picture = tmp_path / "a.png"
    for text in [json.dumps({**content, key: value}) for key, value in WRONG[name].items()] + [
        DEEP, line[: line.index(":") + 1] + DEEP + "}"
    ]:  # fmt: skip
        path.write_text("".join(f"{entry}\n" for entry in (text, *others)))
        with untouched(tmp_path):
            if name != "events.jsonl":
                assert str(path) in resumed(out)
            if name == "result.json":
                assert str(path) in refused("table", out)
            if name != "run.json":
                assert str(path) in refused("figure", "accuracy", out, "-o", picture)
