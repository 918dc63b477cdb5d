"""Whatever the user can mend is one clear line, exit 2, and nothing half-written."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Done, command, contents, names, onepass, process, untouched
from PIL import Image

from onepass import checkpoint
from onepass.job import Job
from onepass.run import run

JOB = Job("er", "synthetic", batch=30, device="cpu")
RUN = ("run", "er", "--dataset", "synthetic", "--batch", 30, "--device", "cpu")
GPU = torch.cuda.is_available()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one finished run, which no bad input may touch."""
    out = tmp_path_factory.mktemp("finished")
    run(JOB, out)
    return out


@pytest.fixture
def broken(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run that lacks nothing but its end: resuming reads its files."""
    out = tmp_path / "broken"
    shutil.copytree(finished, out)
    (out / JOB.folder_name / "result.json").unlink()
    return out


def refused(*arguments: object) -> str:
    """The line with which a command is refused."""
    done = onepass(*arguments)
    assert done.status == 2, done.err
    assert done.out == ""
    return done.error


# ---- the command line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "gsaa"), ["'gsaa'", "Did you mean 'gsa'?", "finetune"]),
        (("run", "er", "--dataset", "digit"), ["'digit'", "Did you mean 'digits'?"]),
        (("run", "er", "--dataset", "digit", "--image-size", 8), ["Did you mean 'digits'?"]),
        (("run", "er", "--set", "lrr=1"), ["'lrr'", "Did you mean 'lr'?", "weight_decay"]),
        (("run", "er", "--set", "lr=fast"), ["lr", "a number", "'fast'"]),
        (("run", "er", "--set", "mirror=3"), ["mirror", "true or false", "3"]),
        (("run", "er", "--set", "loss=max"), ["loss", "sum or mean", "'max'"]),
        (("run", "er", "--set", "lr=-1"), ["lr", "positive", "-1"]),
        (("run", "er", "--set", "lr"), ["--set", "KEY=VALUE", "'lr'"]),
        (("run", "er", "--set", "lr=1", "--set", "lr=2"), ["lr", "twice"]),
        (("run", "er", "--set", "seed=1"), ["--seed"]),
        (("run", "er", "--set", "net=vgg"), ["net", "'vgg'", "resnet18"]),
        (("run", "er", "--set", "mean=(1,1)"), ["mean"]),
        (("run", "er", "--set", "std=()"), ["std"]),
        (("run", "er", "--memory", -1), ["memory", "zero or more", "-1"]),
        (("run", "finetune", "--memory", -1), ["memory", "-1"]),
        (("run", "er", "--memory", "lots"), ["--memory", "integer"]),
        (("run", "er", "--tasks", 0), ["tasks", "10", "0"]),
        (("run", "er", "--tasks", 99), ["tasks", "10", "99"]),
        (("run", "er", "--batch", 0), ["batch", "at least 1"]),
        (("run", "er", "--seeds", 0), ["--seeds"]),
        (("run", "er", "--every", 0), ["--every"]),
        (("run", "er", "--threads", 0), ["--threads"]),
        (("run", "er", "--threads", 100_000), ["--threads", "1024"]),
        (("bench", "er", "--threads", 100_000), ["--threads", "1024"]),
        (("run", "er", "--validation", 1.5), ["between 0 and 1", "1.5"]),
        (("run", "er", "--class-order", "odd"), ["odd", "natural", "shuffled"]),
        (("run", "er", "--device", "tpu"), ["tpu", "cpu", "cuda"]),
        pytest.param(
            ("run", "er", "--device", "cuda"),
            ["cuda", "GPU"],
            marks=pytest.mark.skipif(GPU, reason="there is a GPU"),
        ),
        (("run", "er", "--preset", "tunde"), ["'tunde'", "Did you mean 'tuned'?"]),
        (("run", "joint", "--preset", "official"), ["'joint'", "'official'", "it has: common"]),
        (("run", "er", "--preset", "paper"), ["'er' has no preset 'paper'; it has: common, tuned"]),
        (("run", "gsa", "--preset", "tuned"), ["'gsa'", "'synthetic'", "--set mirror=false"]),
        (("run", "er", "--mirror-is-another-class"), ["mirror_is_same_class", "your own files"]),
        (("run", "er", "--normalise", "task"), ["--normalise", "'task'", "dataset, first-task"]),
        (("run", "er", "--checkpoint", 0), ["--checkpoint", "at least 1", "none"]),
        (("run", "er", "--checkpoint", -3), ["--checkpoint"]),
        (("run", "er", "--checkpoint", "often"), ["--checkpoint", "'often'"]),
        (("run", "er", "--checkpoint", "²"), ["--checkpoint"]),
        (("run", "er", "--chekpoint", 5), ["--chekpoint"]),
        (("run",), ["methods"]),
        (("rnu", "er"), ["rnu"]),
        (("run", "er", "--stream", "blury"), ["'blury'", "Did you mean 'blurry'?", "long-tail"]),
        (("run", "er", "--stream", "blurry:q=1"), ["'q'", "blurry"]),
        (
            ("run", "er", "--stream", "class-incremental:tasks=2", "--tasks", 5),
            ["tasks=2", "--tasks says 5"],
        ),
        (
            ("run", "er", "--stream", "blurry:batch=5", "--batch", 20),
            ["batch=5", "--batch says 20"],
        ),
        (
            ("run", "er", "--stream", "long-tail:class_order=natural", "--class-order", "shuffled"),
            ["class_order=natural", "--class-order says shuffled"],
        ),
        (("run", "er", "aser", "--memory", 1), ["aser: memory", "at least 2"]),
        (("run", "er", "--stream", "long-tail:rho=x"), ["rho", "a number", "'x'"]),
        (("run", "er", "--dataset", "cifar100", "--data-root", "EMPTY"), ["cifar100", "download"]),
        (("run", "er", "--dataset", "EMPTY/nowhere"), ["nowhere"]),
        (("data", "check", "cifar"), ["'cifar'", "cifar100", "mnist"]),
        (("data", "check", "mnist", "--data-root", "EMPTY"), ["mnist", "download"]),
        (("data", "cache", "mnist", "--data-root", "EMPTY"), ["mnist", "download"]),
        (("list", "things"), ["'things'", "methods", "datasets", "streams", "networks"]),
        (("list",), ["what"]),
        (("table", "FINISHED", "--format", "html"), ["'html'", "markdown", "latex", "csv"]),
        (("table", "FINISHED", "--against", "hearsay"), ["'hearsay'", "published"]),
        (("table", "EMPTY"), ["no finished run"]),
        (("table", "EMPTY/nowhere"), ["nowhere"]),
        (("figure", "accuracy", "EMPTY", "-o", "EMPTY/a.png"), ["no finished run"]),
        (("figure", "accuracy", "FINISHED", "-o", "EMPTY/a.txt"), [".png", ".svg", "a.txt"]),
        (("figure", "accuracy", "FINISHED"), ["--output"]),
        (("figure", "stream", "blury", "-o", "EMPTY/a.png"), ["Did you mean 'blurry'?"]),
        (("figure", "acuracy", "FINISHED", "-o", "EMPTY/a.png"), ["Did you mean 'accuracy'?"]),
        (("figure", "accuracy", "FINISHED", "-o", "EMPTY/a.png", "--kind", "pie"), ["'pie'"]),
        (("figure", "accuracy", "FINISHED", "-o", "/dev/null/a.png"), ["/dev/null"]),
        (("predict", "EMPTY/model.pt", "EMPTY"), ["no file", "model.pt"]),
        (("predict", "EMPTY", "EMPTY"), ["a folder"]),
        (("predict", "MODEL", "EMPTY"), ["no image"]),
        (("predict", "MODEL", "EMPTY/nowhere"), ["nowhere"]),
        (("predict", "MODEL", "EMPTY", "--device", "tpu"), ["tpu"]),
        (("predict", "MODEL"), ["folder"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_bad_arguments_are_one_clear_line(
    arguments: tuple[object, ...], words: list[str], finished: Path, tmp_path: Path
) -> None:
    model = finished / JOB.folder_name / "checkpoint.pt"
    places = {"EMPTY": str(tmp_path), "FINISHED": str(finished), "MODEL": str(model)}
    given = [str(argument) for argument in arguments]
    for name, path in places.items():
        given = [argument.replace(name, path) for argument in given]
    if given[0] == "run":
        if "--dataset" not in given:
            given += ["--dataset", "synthetic"]
        given += ["--out", str(finished)]
    with untouched(finished), untouched(tmp_path):
        line = refused(*given)
    assert all(word in line for word in words), line


def test_a_bad_command_in_a_process_of_its_own_says_one_line_and_nothing_else(
    tmp_path: Path,
) -> None:
    done = process("run", "gsa", "--nonsense", cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert done.err == done.error + "\n"
    assert "--nonsense" in done.error
    assert contents(tmp_path) == {}


def test_more_memory_than_the_machine_has_is_one_clear_line(tmp_path: Path) -> None:
    done = onepass(*RUN, "--memory", 10**15, "--out", tmp_path)
    assert done.status in (1, 2)
    assert "memory" in done.error


def test_training_that_fails_is_one_line_and_exit_1(tmp_path: Path) -> None:
    done = onepass(*RUN, "--set", "lr=1e30", "--out", tmp_path)
    assert (done.status, done.out) == (1, "")
    assert "loss" in done.error
    assert "nan" in done.error
    assert not list(tmp_path.rglob("result.json"))


# ---- checkpoints


class Code:
    """Unpickling this runs code: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def resumed(out: Path, *, method: str = "er") -> str:
    """The line with which a damaged run is refused; the folder stays as it was."""
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
    save({**checkpoint.read(path), "more": Code(made)}, path)
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
    content = checkpoint.read(finished / JOB.folder_name / "checkpoint.pt")
    *way, last = keys
    inside = content
    for key in way:
        inside = inside[key]
    inside[last] = value
    checkpoint.write(tmp_path / "model.pt", content)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    line = refused("predict", tmp_path / "model.pt", tmp_path / "one.png")
    assert str(tmp_path / "model.pt") in line
    assert any(word in line for word in said.split("|"))


def test_a_checkpoint_of_what_has_diverged_answers_no_question(
    finished: Path, tmp_path: Path
) -> None:
    content = checkpoint.read(finished / JOB.folder_name / "checkpoint.pt")
    content["state"]["model"]["head.bias"] *= np.nan
    checkpoint.write(tmp_path / "model.pt", content)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    done = onepass("predict", tmp_path / "model.pt", tmp_path / "one.png")
    assert (done.status, done.out) == (1, "")
    assert "the parameters of 'er' are not finite" in done.error


def test_a_checkpoint_of_another_method_is_refused(broken: Path, tmp_path: Path) -> None:
    other = run(Job("gsa", "synthetic", batch=30), tmp_path / "other")
    target = broken / JOB.folder_name / "checkpoint.pt"
    shutil.copy(Path(other.out) / "checkpoint.pt", target)
    line = resumed(broken)
    assert str(target) in line
    assert "gsa" in line


@pytest.mark.parametrize("other", [{"seed": 5}, {"memory": 50}, {"settings": {"lr": "5e-4"}}])
def test_a_checkpoint_of_the_same_method_with_other_settings_is_refused(
    other: dict[str, Any], broken: Path, tmp_path: Path
) -> None:
    result = run(Job("er", "synthetic", batch=30, **other), tmp_path / "other")
    target = broken / JOB.folder_name / "checkpoint.pt"
    shutil.copy(Path(result.out) / "checkpoint.pt", target)
    assert str(target) in resumed(broken)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("tick",), {"step": "x", "task": 0, "seconds": 0.0, "hits": 0, "tried": 0}),
        (("tick",), []),
        (("tick", "step"), 10**6),
        (("lines",), []),
        (("lines", "events"), ["no JSON"]),
        (("lines", "events"), []),
        (("lines", "../up"), ["written elsewhere"]),
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
    content = checkpoint.read(path)
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
        path.write_text("".join(f"{one}\n" for one in (text, *others)))
        with untouched(tmp_path):
            if name != "events.jsonl":
                assert str(path) in resumed(out)
            if name == "result.json":
                assert str(path) in refused("table", out)
            if name != "run.json":
                assert str(path) in refused("figure", "accuracy", out, "-o", picture)


# ---- places that cannot be written


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with untouched(tmp_path):
        for out in (file, file / "below", file / "far/below"):
            assert str(file) in refused(*RUN, "--out", out)
            assert str(file) in refused(*RUN, "--out", out, "--resume")


def test_a_file_where_the_run_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / JOB.folder_name).write_text("precious")
    with untouched(tmp_path):
        for resume in ([], ["--resume"]):
            assert JOB.folder_name in refused(*RUN, "--out", tmp_path, *resume)


def test_a_folder_that_cannot_be_written_is_named() -> None:
    assert "/proc/onepass" in refused(*RUN, "--out", "/proc/onepass")


def can_mount() -> bool:
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


FULL_DISK = """
disk=$1; shift
mount -t tmpfs -o size=4m tmpfs "$disk" || exit 99
"$@"; echo "status $?" >&2
ls -A "$disk"/*/ >&2
mount -o remount,size=64m "$disk" || exit 99
exec "$@" --resume
"""


@pytest.mark.skipif(not can_mount(), reason="no disk can be mounted here; see the next test")
def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    run = command("run", "er", "--device", "cpu", "--json", "--checkpoint", 40, "--out", disk)
    line = ["unshare", "-rm", "sh", "-c", FULL_DISK, "sh", str(disk), *run]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    done = Done(ended.returncode, ended.stdout, ended.stderr)
    assert "No space left" in done.error
    assert str(disk) in done.error
    assert "status 2" in done.err
    listed = done.err.split("status 2\n")[1].split("er seed")[0].split()
    assert set(listed) - {".lock"} == {"checkpoint.pt", "events.jsonl", "run.json", "log.txt"}
    assert done.status == 0, done.err
    whole = onepass("run", "er", "--device", "cpu", "--json", "--out", tmp_path / "w").record
    assert done.record["state_sha256"] == whole["state_sha256"]


def test_a_file_that_may_not_grow_is_one_line_and_leaves_nothing_half_written(
    tmp_path: Path,
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

    done = process(*RUN, "--checkpoint", 5, "--out", tmp_path, preexec_fn=limit)
    assert (done.status, done.out) == (2, "")
    assert "checkpoint.pt" in done.error
    assert names(tmp_path / JOB.folder_name) == {"run.json", "events.jsonl", "log.txt"}


# ---- images


@pytest.fixture
def model(finished: Path) -> Path:
    return finished / JOB.folder_name / "checkpoint.pt"


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(*chunks: bytes, side: int = 12) -> bytes:
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + b"".join(chunks) + chunk(b"IEND", b"")


PIXELS = zlib.compress(bytes(7 * i % 251 for i in range(12 * 13)))
NO_IMAGES = {
    "empty": b"",
    "text": b"no image at all",
    "no pixels": png(),
    "cut short": png(chunk(b"IDAT", PIXELS))[:100],
    "damaged pixels": png(chunk(b"IDAT", b"\0" + PIXELS[1:])),
    "a chunk without a name": png(chunk(b"IDAT", PIXELS[:50]), chunk(b"\1\2\3\4", PIXELS[50:])),
    "far too large": png(chunk(b"IDAT", PIXELS), side=60_000),
}


@pytest.mark.parametrize("kind", NO_IMAGES)
def test_what_is_no_image_is_named_once(kind: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(NO_IMAGES[kind])
    assert str(path) in refused("predict", model, tmp_path)
    assert str(path) in refused("predict", model, path)


def test_the_images_that_can_be_read_are_classified_all_the_same(
    model: Path, tmp_path: Path
) -> None:
    for name in ("a.png", "c.png"):
        Image.new("RGB", (12, 12)).save(tmp_path / name)
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    done = onepass("predict", model, tmp_path, "--json")
    assert done.status == 2
    assert [Path(record["path"]).name for record in done.records] == ["a.png", "c.png"]
    assert str(tmp_path / "b.png") in done.error


def test_a_folder_with_the_name_of_an_image_is_no_image(model: Path, tmp_path: Path) -> None:
    (tmp_path / "holiday.png").mkdir()
    Image.new("RGB", (12, 12)).save(tmp_path / "holiday.png/beach.png")
    done = onepass("predict", model, tmp_path, "--json")
    assert done.status == 0, done.err
    assert Path(done.record["path"]).name == "beach.png"


def test_a_result_can_be_read_by_any_json_reader(finished: Path) -> None:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    for path in (finished / JOB.folder_name).glob("*.json*"):
        text = path.read_text()
        for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
            json.loads(part, parse_constant=no_constant)


def test_an_option_may_repeat_what_the_stream_says(tmp_path: Path) -> None:
    said = ("--stream", "class-incremental:tasks=2,batch=20", "--tasks", 2, "--batch", 20)
    done = onepass("run", "er", "--dataset", "synthetic", *said, "--json", "--out", tmp_path)
    assert done.status == 0, done.err


def test_a_folder_with_a_plain_name_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets").mkdir()
    monkeypatch.chdir(tmp_path)
    for more in ((), ("--test-fraction", 0.2), ("--image-size", 8)):
        assert "./pets" in refused("run", "er", "--dataset", "pets", *more)


def test_a_file_for_out_is_not_a_folder_whichever_way_it_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with untouched(tmp_path):
        line = refused(*RUN, "--out", tmp_path / "file")
    assert "a file is in the way" in line and "Errno" not in line


def test_every_failure_is_told(tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        runs = ("run", "er", "gsa", "finetune", "--set", "lr=1e30", "--dataset", "synthetic")
        done = onepass(*runs, "--jobs", jobs, "--out", tmp_path / jobs)
        assert done.status == 1
        assert all(f"the loss of {name!r}" in done.error for name in ("er", "gsa", "finetune"))


def test_scoring_less_often_than_the_stream_is_long_still_ends_with_a_result(
    tmp_path: Path,
) -> None:
    done = onepass(
        "run", "finetune", "--dataset", "synthetic", "--every", 10_000, "--out", tmp_path
    )
    assert done.status == 0, done.err


def test_a_dataset_may_be_spelled_otherwise_when_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "below").mkdir()
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(80, 5)), y=np.arange(80) % 4)
    for place, spelled in ((tmp_path, "./mine.npz"), (tmp_path / "below", "../mine.npz")):
        monkeypatch.chdir(place)
        data = ("--dataset", spelled, "--test-fraction", 0.2, "--tasks", 2)
        done = onepass("run", "er", *data, "--resume", "--out", tmp_path / "runs", "--json")
        assert done.status == 0, done.err
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 1


def test_data_that_cannot_be_scored_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {"train_x": rng.normal(size=(80, 5)), "train_y": np.arange(80) % 4}
    parts |= {"test_x": rng.normal(size=(20, 5)), "test_y": np.arange(20) % 2}
    np.savez(tmp_path / "mine.npz", **parts)
    with untouched(tmp_path):
        line = refused("run", "er", "--dataset", tmp_path / "mine.npz", "--tasks", 2,
                       "--out", tmp_path / "runs")  # fmt: skip
    assert "no test samples of task 2" in line


def test_a_stream_over_files_that_are_not_split_can_be_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(80, 5)), y=np.arange(80) % 4)
    data = ("--dataset", tmp_path / "mine.npz", "--test-fraction", 0.2)
    stream = "class-incremental:tasks=2"
    done = onepass("figure", "stream", stream, *data, "-o", tmp_path / "s.PNG")
    assert done.status == 0, done.err
    assert (tmp_path / "s.PNG").stat().st_size > 1000


def test_hidden_files_are_no_images(model: Path, tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "seen.png")
    (tmp_path / "._seen.png").write_bytes(b"what a Mac leaves behind")
    done = onepass("predict", model, tmp_path)
    assert done.status == 0, done.err
    assert "._seen" not in done.out + done.err
