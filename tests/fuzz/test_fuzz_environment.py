"""In an odd environment a command does what it does in an ordinary one, or says one line.

Bits of a run and answers are the same; there is no traceback. What an environment may prevent, such
as writing to a folder that is read-only, is listed as HARMFUL; nothing else is refused. A run that
was prevented continues in an ordinary environment and ends with the same bits.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import formats
import pytest
from command import RESULT_TIMES, Done, onepass
from file_rights import file_rights_bind, obey_file_rights
from fuzzing import fuzz, without_bars

TESTED: Counter[str] = Counter()
PATIENCE = 120


@dataclass
class Child:
    """How a command is started: in a folder of its own, with all that a change adds to it."""

    place: Path
    environment: dict[str, str | None] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    before: list[Callable[[], object]] = field(default_factory=list)  # is called in the child
    umask: int = 0

    def start(self, arguments: list[str]) -> Done:
        variables = {**os.environ, **self.environment}
        done = subprocess.run(
            [sys.executable, *self.flags, "-m", "onepass", *arguments],
            env={name: value for name, value in variables.items() if value is not None},
            cwd=self.place / "here",
            preexec_fn=lambda: [act() for act in self.before],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return Done(done.returncode, out, err)


Change = Callable[[random.Random, Child], None]


# ---- what may be odd


def variable(name: str, *values: str | None) -> Change:
    def change(chance: random.Random, child: Child) -> None:
        child.environment[name] = chance.choice(values)

    return change


def flags(chance: random.Random, child: Child) -> None:
    child.flags += chance.choice(
        [["-O"], ["-OO"], ["-W", "error"], ["-X", "dev"], ["-B"], ["-bb"], ["-u"]]
    )


def umask(chance: random.Random, child: Child) -> None:
    child.umask = chance.choice([0o077, 0o027, 0o000])
    child.before.append(partial(os.umask, child.umask))


def seeded_hashes(chance: random.Random, child: Child) -> None:
    child.environment["PYTHONHASHSEED"] = str(chance.randrange(2**32))


def no_stdin(chance: random.Random, child: Child) -> None:
    child.before.append(partial(os.close, 0))


def home(chance: random.Random, child: Child) -> None:
    """Names a home that is not there, or a file; the cache has a folder of its own."""
    (child.place / "file").touch()
    child.environment["HOME"] = chance.choice(["/nowhere", str(child.place / "file"), "", "."])


def folder_without_rights(name: str, rights: int) -> Change:
    def change(chance: random.Random, child: Child) -> None:
        folder = child.place / name
        for path in (*folder.rglob("*"), folder):
            path.chmod(rights if path.is_dir() else rights & 0o666)
        child.before.append(obey_file_rights)

    return change


def whole_cache_is_read_only(chance: random.Random, child: Child) -> None:
    shutil.copytree(child.place / "made-cache", child.place / "cache", dirs_exist_ok=True)
    folder_without_rights("cache", 0o555)(chance, child)


HARMLESS: dict[str, Change] = {
    "HOME": home,
    "TMPDIR": variable("TMPDIR", "/nowhere", "/proc", ""),
    "TERM": variable("TERM", None, "", "dumb", "vt999", "xterm-256color"),
    "COLUMNS": variable("COLUMNS", "", "0", "1", "-3", "x", "9" * 30),
    "NO_COLOR": variable("NO_COLOR", "", "1"),
    "FORCE_COLOR": variable("FORCE_COLOR", "", "1"),
    "LANG": variable("LANG", None, "", "C", "tr_TR.UTF-8", "x"),
    "LC_ALL": variable("LC_ALL", "", "C", "POSIX", "C.UTF-8", "tr_TR.UTF-8", "x"),
    "PYTHONIOENCODING": variable("PYTHONIOENCODING", "ascii", "latin-1", "cp1254", "utf-8"),
    "PYTHONUTF8": variable("PYTHONUTF8", "1"),
    "PYTHONWARNINGS": variable("PYTHONWARNINGS", "error", "ignore", "x"),
    "OMP_NUM_THREADS": variable("OMP_NUM_THREADS", "1", "3", "64", "0", "x"),
    "MKL_NUM_THREADS": variable("MKL_NUM_THREADS", "1", "3"),
    "TZ": variable("TZ", "Asia/Kathmandu", "", "x", "UTC+25"),
    "PYTHONHASHSEED": seeded_hashes,
    "Python": flags,
    "umask": umask,
    "stdin": no_stdin,
    "a whole cache without rights to write": whole_cache_is_read_only,
    "a working directory without rights to write": folder_without_rights("here", 0o555),
}


def closed(number: int) -> Change:
    def change(chance: random.Random, child: Child) -> None:
        child.before.append(partial(os.close, number))

    return change


def full_stdout(chance: random.Random, child: Child) -> None:
    child.before.append(lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1))


def limit(kind: int, least: int, most: int) -> Change:
    def change(chance: random.Random, child: Child) -> None:
        value = round(least * (most / least) ** chance.random())
        child.before.append(partial(resource.setrlimit, kind, (value, value)))

    return change


def home_is_read_only(chance: random.Random, child: Child) -> None:
    """Where no variable names a cache, it is in the home."""
    child.environment |= {"HOME": str(child.place / "home"), "ONEPASS_CACHE": None}
    folder_without_rights("home", 0o555)(chance, child)


def file_as_cache(chance: random.Random, child: Child) -> None:
    (child.place / "file").touch()
    child.environment["ONEPASS_CACHE"] = str(child.place / "file")


def ascii_names(chance: random.Random, child: Child) -> None:
    """Names of files that are not ASCII are bytes that Python cannot read as text."""
    child.environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


HARMFUL: dict[str, Change] = {
    "a closed stdout": closed(1),
    "a closed stderr": closed(2),
    "a full stdout": full_stdout,
    "few files at once": limit(resource.RLIMIT_NOFILE, 12, 200),
    "short files": limit(resource.RLIMIT_FSIZE, 1, 2_000_000),
    "a home without rights to write": home_is_read_only,
    "a cache without rights to write": folder_without_rights("cache", 0o555),
    "a cache without rights": folder_without_rights("cache", 0o000),
    "a file as the cache": file_as_cache,
    "runs without rights to write": folder_without_rights("runs", 0o555),
    "runs without rights": folder_without_rights("runs", 0o000),
    "images without rights": folder_without_rights("\u732b", 0o000),
    "ASCII names of files": ascii_names,
}


# ---- what is started, and what must come of it

IMAGES = ["--dataset", "{place}/\u732b", "--batch", "4", "--memory", "8", "--device", "cpu"]
OUT = ["--out", "{place}/runs"]
MADE = "{place}/made"
COMMANDS: dict[str, list[str]] = {
    "run": ["run", "er", *IMAGES, "--json", "--checkpoint", "3", *OUT],
    "run with a picture": ["run", "er", *IMAGES, *OUT],
    "workers": ["run", "er", *IMAGES, "--json", "--seeds", "2", "--jobs=2", *OUT],
    "sweep": ["sweep", "{place}/sweep.toml", "--append", "{place}/lines.jsonl"],
    "table": ["table", MADE, "--columns", "accuracy,forgetting", "--format", "csv"],
    "predict": ["predict", "{place}/model.pt", "{place}/photos", "--json"],
    "report": ["report", MADE, "-o", "{place}/report.html"],
    "figure": ["figure", "accuracy", MADE, "-o", "{place}/accuracy.png"],
    "list": ["list", "methods", "--json"],
}
SWEEP = """
[defaults]
dataset = "{place}/\u732b"
batch = 4
memory = 8
methods = ["er", "finetune"]
"""
CLASSES = ("na\u00efve", "\u0130stanbul", "\u732b")
# the values of a result that depend on the moment, the folder of the case, or a call of git
NOT_COMPARED = (*RESULT_TIMES, "out", "commit")
SAME_TEXT = ("table", "predict", "list")  # the commands whose output has no times
Outcome = dict[str, Any]


def furnish(place: Path) -> None:
    """Makes images, a finished run, its model, a sweep's file and empty folders."""
    formats.write_folders(place / "\u732b", formats.noise(3, (3, 8, 8), train=8, test=3), CLASSES)
    shutil.copytree(place / "\u732b/test" / CLASSES[0], place / "photos")
    (place / "sweep.toml").write_text(SWEEP.format(place=place))
    ordinary(place, [*COMMANDS["run"][:-2], "--out", "{place}/made"], cache="made-cache")
    (model,) = (place / "made").glob("*/checkpoint.pt")
    shutil.copy(model, place / "model.pt")
    for name in ("here", "home", "cache", "runs"):
        (place / name).mkdir()


def ordinary(place: Path, words: list[str], cache: str = "cache") -> Done:
    """Carries out a command in this process."""
    with patch.dict(os.environ, ONEPASS_CACHE=str(place / cache)), without_bars():
        done = onepass(*(word.format(place=place) for word in words if word != "--jobs=2"))
    assert done.status == 0, done.err
    return done


def outcome(place: Path, name: str, done: Done) -> Outcome:
    """Returns what a command has made or said, without times and without the folder's name."""
    written = [*place.glob("runs/*/result.json"), *place.glob("lines.jsonl")]
    found = [json.loads(text) for path in written for text in texts(path)]
    results = [{key: run[key] for key in run if key not in NOT_COMPARED} for run in found]
    files = [path.name for path in place.glob("**/*") if path.suffix in (".png", ".html")]
    told = {
        "results": sorted(json.dumps(run, sort_keys=True) for run in results),
        "files": sorted(set(files)),
        "said": done.out if name in SAME_TEXT else "",
    }
    return json.loads(json.dumps(told).replace(str(place), "PLACE"))


def texts(path: Path) -> list[str]:
    """Returns the JSON texts of a file: its lines, or all of it."""
    text = path.read_text()
    return text.splitlines() if path.suffix == ".jsonl" else [text]


@cache
def usual_outcome(name: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        furnish(Path(folder))
        return outcome(Path(folder), name, ordinary(Path(folder), COMMANDS[name]))


def a_case(chance: random.Random) -> None:
    name = chance.choice(list(COMMANDS))
    changes = chance.sample(possible(HARMLESS), k=chance.choice([0, 1, 2]))
    if not changes or chance.random() < 0.3:
        changes.append(chance.choice(possible(HARMFUL)))
    try:
        try_command(chance, name, changes)
    except BaseException as failed:
        failed.add_note(f"{name}, with {changes}")
        raise


def possible(changes: dict[str, Change]) -> list[str]:
    """Returns the names of changes; only those that need no rights if a child keeps its own."""
    return [name for name in changes if file_rights_bind() or "rights" not in name]


def try_command(chance: random.Random, name: str, changes: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        child = Child(Path(folder))
        child.environment["ONEPASS_CACHE"] = str(child.place / "cache")
        furnish(child.place)
        for change in changes:
            (HARMLESS | HARMFUL)[change](chance, child)
        done = child.start([word.format(place=folder) for word in COMMANDS[name]])
        assert not any(path.stat().st_mode & child.umask for path in child.place.glob("runs/**/*"))
        give_rights(child.place)
        assert "Traceback" not in done.err + done.out, done.err
        TESTED.update(f"{change}: {'refused' if done.status else 'same'}" for change in changes)
        if done.status:
            assert HARMFUL.keys() & changes, done
            assert done.status in (1, 2), done
            assert "a closed stderr" in changes or done.error
            resume = ["--resume"] if name.startswith(("run", "workers")) else []
            done = ordinary(child.place, [*COMMANDS[name], *resume])
        assert outcome(child.place, name, done) == usual_outcome(name)
        assert not list(child.place.glob("**/.*.partial"))


def give_rights(place: Path) -> None:
    """Lets this process read and write again what a change took from its child."""
    for folder in [place, *filter(Path.is_dir, place.iterdir())]:
        folder.chmod(0o777)
    for path in place.glob("**/*"):
        path.chmod(0o777 if path.is_dir() else 0o666)


@pytest.mark.slow
def test_the_environment_changes_no_bit_or_one_line_says_why() -> None:
    fuzz("environment", a_case, few=6)
    print(dict(TESTED))
