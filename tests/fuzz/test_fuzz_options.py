"""Random commands work, or are refused with one line and leave nothing behind.

No name, number or path reaches the terminal unescaped, or a traceback.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

from command import Done, onepass, read_files
from fuzzing import fuzz

from onepass.base.errors import InputError
from onepass.base.settings import setting_names
from onepass.learning import registry
from onepass.runs.execute import run_job
from onepass.runs.spec import Job
from onepass.tools import bench

# Numbers between these would be asked for, and be gotten, on a machine that is large enough.
SMALL = ("0", "1", "2", "3", "7", "20", "-0", "-1", "+2", "007", "1_0", "٣", "0x10", "1e1", "1.5")
LARGE = tuple(
    str(number) for number in (10**13, 2**53, 2**63 - 1, 2**63, -(2**63), 10**40, 10**399)
)
LARGE += ("9" * 5000, "1e308", "1e400", "-1e400")
WORDS = ("", " ", "none", "auto", "true", "False", "nan", "-inf", "er", "digits", "natural", "all",
         "-", "--", "--json", "-o", "=", "a=b", ":", ",", "()", "(1,)", "(1,2)", "[", "{}", "'",
         "\\", "\x1b[2J", "\x1b]0;x\x07", "\r", "\n", "\t", "\u202e", "\udce9", "猫", "$x$", "%s",
         "[/b]", "{0}", "../..", "~", "x" * 300, "a\\d", "1if 1else 2", "exit()")  # fmt: skip
COSTLY = {"gdumb", "gss", "ocm", "ocm-gsa"}  # minutes for them
METHODS = sorted({info.key for info in registry.methods()} - COSTLY)
SETTINGS = sorted({name for entry in registry.methods() for name in setting_names(entry.learner)})
ENDLESS = {"epochs"}  # as many as one likes can be asked for, and are trained
STREAMS = ("class-incremental", "long-tail", "blurry")
KEYS = ("tasks", "batch", "rho", "n", "m", "class_order", "boundaries", "seed", "")
MODEL = "made/er-synthetic-m5-s0/checkpoint.pt"


@cache
def made() -> dict[str, bytes]:
    """Returns the files of a finished run."""
    with tempfile.TemporaryDirectory() as folder:
        run_job(Job("er", "synthetic", memory=5, batch=60, device="cpu"), Path(folder))
        files = read_files(Path(folder))
        return {name: content for name, content in files.items() if content is not None}


@contextlib.contextmanager
def a_place_with_a_run() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cached:
        place = Path(folder).resolve()
        for name, content in made().items():
            path = place / "made" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (place / "file.png").write_bytes(b"neither a folder nor an image")
        (place / "empty").mkdir()
        os.chdir(place)
        try:
            with mock.patch.dict(os.environ, ONEPASS_CACHE=cached):
                yield place
        finally:
            os.chdir(before)


# ---- what is typed


def strange(chance: random.Random) -> str:
    return chance.choice(chance.choice((SMALL, LARGE, WORDS)))


def likely(chance: random.Random, *good: str) -> str:
    """Returns a sensible value, or any."""
    return chance.choice(good) if chance.random() < 0.7 else strange(chance)


def a_setting(chance: random.Random) -> str:
    name = likely(chance, *SETTINGS)
    value = strange(chance) if name not in ENDLESS else chance.choice(WORDS)
    return f"{name}={value}" if chance.random() < 0.95 else strange(chance)


def a_stream(chance: random.Random) -> str:
    pairs = [f"{likely(chance, *KEYS)}={strange(chance)}" for _ in range(chance.randrange(3))]
    return likely(chance, *STREAMS) + (f":{','.join(pairs)}" if pairs else "")


def a_path(chance: random.Random) -> str:
    return likely(chance, "made", "empty", "file.png", "made/nowhere", "/dev/null/x", MODEL)


def a_dataset(chance: random.Random) -> str:
    own = ("./empty", "./made", "./file.png", "./nowhere.npz", "./nowhere", "cifar10", "digit")
    return likely(chance, "digits", "digits", "digits", "synthetic", *own)


def options(chance: random.Random, *valid: str, most: int = 3) -> list[str]:
    """Returns some of the options, or an unknown one, each with a value."""
    words = []
    for _ in range(chance.randrange(most + 1)):
        name = chance.choice(valid) if chance.random() < 0.95 else "--" + strange(chance)
        value = {
            "--set": a_setting,
            "--stream": a_stream,
            "--dataset": a_dataset,
            "--data-root": a_path,
            "--threads": lambda chance: likely(chance, "1", "2", "0", "1025"),
        }.get(name, strange)(chance)
        words += [name, value] if chance.random() < 0.95 else [name]
    return words


RUN = ("--dataset", "--data-root", "--image-size", "--test-fraction", "--normalise", "--memory",
       "--seed", "--seeds", "--stream", "--tasks", "--class-order", "--preset", "--set", "--set",
       "--set", "--validation", "--every", "--probe", "--checkpoint", "--device", "--engine",
       "--precision", "--threads")  # fmt: skip


def a_run(chance: random.Random) -> list[str]:
    """Returns a run that, if accepted, ends after a few steps in this process."""
    method = likely(chance, *METHODS)
    few = ["--memory", "5", "--batch", chance.choice(("400", "1000"))]
    out = chance.choice(("new/runs", "new", "empty", a_path(chance)))
    told = [] if chance.random() < 0.1 else ["--json"]  # a picture takes longer than the run
    return [
        "run",
        method,
        *few,
        *options(chance, *RUN, most=2),
        *told,
        "--device",
        "cpu",
        "--out",
        out,
    ]


def a_table(chance: random.Random) -> list[str]:
    return ["table", a_path(chance), *options(chance, "--format", "--against")]


def a_figure(chance: random.Random) -> list[str]:
    what = likely(chance, "accuracy", "stream")
    drawn = a_stream(chance) if what == "stream" else a_path(chance)
    output = likely(chance, "new.png", "new/x.SVG", "file.png/x.png", "x.txt", "empty")
    more = options(chance, "--kind", "--dataset", "--seed", "--image-size", "--test-fraction")
    return ["figure", what, drawn, "-o", output, *more]


def a_list(chance: random.Random) -> list[str]:
    kinds = ("datasets", "streams", "networks", "probes")
    return ["list", likely(chance, *kinds), *options(chance, "--json", most=1)]


def a_look_at_data(chance: random.Random) -> list[str]:
    command = likely(chance, "list", "check", "cache")
    named = [] if command == "list" else [likely(chance, "mnist", "cifar10", "tiny-imagenet")]
    return ["data", command, *named, "--data-root", likely(chance, "empty", "made", "nowhere")]


def a_prediction(chance: random.Random) -> list[str]:
    return ["predict", a_path(chance), a_path(chance), *options(chance, "--device", "--json")]


def a_bench(chance: random.Random) -> list[str]:
    names = ("--memory", "--classes", "--shape", "--batch", "--steps", "--set", "--device",
             "--engine", "--precision", "--threads")  # fmt: skip
    return ["bench", likely(chance, "er", "gsa"), *options(chance, *names)]


COMMANDS = (a_run, a_run, a_run, a_table, a_figure, a_list, a_look_at_data, a_prediction, a_bench)


# ---- what must come of it


def a_command(chance: random.Random) -> None:
    arguments = chance.choice(COMMANDS)(chance)
    if chance.random() < 0.05:
        chance.shuffle(arguments)
    if "\0" in "".join(arguments) or "--download" in arguments:
        return
    with a_place_with_a_run() as place:
        before = read_files(place)
        not_timed = mock.patch.object(bench, "measure", side_effect=InputError("not timed here"))
        with not_timed:
            done = onepass(*arguments)
        try:
            check(done, arguments[0])
            if done.status == 2:
                assert read_files(place) == before
        except AssertionError as failed:
            failed.add_note(f"command: {arguments!r}")
            raise


def check(done: Done, command: str) -> None:
    assert done.status in ((0, 1, 2) if command == "run" else (0, 2)), done
    for text in (done.out, done.err):
        assert text.replace("\n", "").replace("\t", "").isprintable(), done
    if done.status and not done.err.startswith("Usage: "):
        assert done.error


def test_strange_options():
    fuzz("options", a_command, few=20)
