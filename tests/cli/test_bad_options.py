"""Commands refuse bad options and unwritable paths with one line and exit 2.

They write nothing by halves.
"""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest
import torch
from command import (
    JOB,
    RUN,
    Done,
    command,
    file_names,
    finished_run,
    onepass,
    process,
    read_files,
    refused,
    untouched,
)

GPU = torch.cuda.is_available()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("finished"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), ["'methods'", "onepass list methods"]),
        (("list",), ["'what'", "datasets", "settings"]),
        (("figure", "accuracy", "runs"), ["--output", ".png"]),
        (("run", "er", "--lr", "1"), ["--lr; as a setting: --set lr=VALUE"]),
        (("run", "gsaa"), ["'gsaa'", "Did you mean 'gsa'?", "finetune"]),
        (("run", "gas"), ["'gas'", "Did you mean 'gsa'?"]),  # and not gss
        (("run", "er", "--dataset", "photos"), ["'photos'", "give their path, such as ./photos"]),
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
        (("run", "er", "gdumb", "--prequential"), ["'gdumb' trains whenever", "prequential"]),
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
        (
            ("run", "gdumb", "--preset", "official"),
            ["'gdumb'", "'synthetic'", "--set mirror=false"],
        ),
        (("run", "er", "--mirror-is-another-class"), ["mirror_is_same_class", "your own files"]),
        (("run", "er", "--normalise", "task"), ["--normalise", "'task'", "dataset, first-task"]),
        (("run", "er", "--checkpoint", 0), ["--checkpoint", "at least 1", "none"]),
        (("run", "er", "--checkpoint", -3), ["--checkpoint"]),
        (("run", "er", "--checkpoint", "often"), ["--checkpoint", "'often'"]),
        (("run", "er", "--checkpoint", "²"), ["--checkpoint"]),
        (("run", "er", "--chekpoint", 5), ["--chekpoint"]),
        (("run", "gsa", "--new-classes", "task"), ["--set new_classes=VALUE"]),
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
        (("table", "EMPTY"), ["there is no run in"]),
        (("table", "EMPTY/nowhere"), ["nowhere"]),
        (("figure", "accuracy", "EMPTY", "-o", "EMPTY/a.png"), ["there is no run in"]),
        (("figure", "accuracy", "FINISHED", "-o", "EMPTY/a.txt"), [".png", ".svg", "a.txt"]),
        (("figure", "accuracy", "FINISHED"), ["--output"]),
        (("figure", "stream", "blury", "-o", "EMPTY/a.png"), ["Did you mean 'blurry'?"]),
        (("figure", "acuracy"), ["unknown figure 'acuracy'", "Did you mean 'accuracy'?"]),
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
    """It says so even if the shell exports that a line has no room."""
    no_room = {**os.environ, "COLUMNS": "0"}
    done = process("run", "gsa", "--nonsense", cwd=tmp_path, env=no_room)
    assert (done.status, done.out) == (2, "")
    assert done.err == done.error + "\n"
    assert "--nonsense" in done.error
    assert read_files(tmp_path) == {}


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


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="no disk can be mounted here; see the next test")
def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    er = ("er", "--preset", "common")
    short = ("run", *er, "--batch", 60, "--device", "cpu", "--json", "--out")
    run = command(*short, disk, "--checkpoint", 8)
    line = ["unshare", "-rm", "sh", "-c", FULL_DISK, "sh", str(disk), *run]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    done = Done(ended.returncode, ended.stdout, ended.stderr)
    assert "No space left" in done.error
    assert str(disk) in done.error
    assert "status 2" in done.err
    listed = done.err.split("status 2\n")[1].split("preset common")[0].split()
    assert set(listed) - {".lock"} == {"checkpoint.pt", "events.jsonl", "run.json", "log.txt"}
    assert done.status == 0, done.err
    whole = onepass(*short, tmp_path / "whole").record
    assert done.record["state_sha256"] == whole["state_sha256"]


def test_a_file_that_may_not_grow_is_one_line_and_leaves_nothing_half_written(
    tmp_path: Path,
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

    done = process(*RUN, "--checkpoint", 5, "--out", tmp_path, preexec_fn=limit)
    assert (done.status, done.out) == (2, "")
    assert "checkpoint.pt" in done.error
    assert file_names(tmp_path / JOB.folder_name) == {"run.json", "events.jsonl", "log.txt"}
