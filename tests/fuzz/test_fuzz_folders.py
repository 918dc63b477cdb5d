"""`table`, `figure` and `--resume` work on damaged run folders, or refuse with one line.

They do not touch what a link leads to, and write nothing by halves. A run that continues ends with
the bits of an undamaged one.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command import Done, onepass
from fuzzing import fuzz
from recording_listeners import Stopped, stop_after

from onepass.runs.execute import run_job
from onepass.runs.spec import Job

JOB = Job("er", "synthetic", batch=60, every=2, device="cpu")  # 10 steps
RESUME = ("run", "er", "--preset", "common", "--dataset", "synthetic", "--batch", 60,
          "--every", 2, "--device", "cpu", "--resume", "--json", "--out")  # fmt: skip
SAME = ("state_sha256", "accuracy", "anytime_accuracy", "accuracy_matrix", "points")
JSON = ("run.json", "result.json", "events.jsonl")
NAMES = (*JSON, *JSON, "checkpoint.pt", ".lock", "accuracy.png")
STRANGE = [None, True, -1, 0, 1e308, -1e308, 0.5, 10**30, 10**400, float("nan"), float("inf"), "",
           "x", "er", "a/\0", "../x", "$\\frac$", "[bold]", "\ud800", "9" * 5000, [], {}, [None],
           [[]], [["x"]], {"a": {}}, {"step": -1}, [1, 2], [10**20] * 10]  # fmt: skip


@cache
def originals() -> dict[str, dict[str, bytes]]:
    """Returns the files of a finished run, and of one that was stopped half-way."""
    with tempfile.TemporaryDirectory() as folder:
        run_job(JOB, Path(folder) / "finished", checkpoint=2)
        with pytest.raises(Stopped):
            run_job(JOB, Path(folder) / "broken", checkpoint=2, listeners=[stop_after(7)])
        return {
            kind: {path.name: path.read_bytes() for path in (Path(folder) / kind).rglob("*.*")}
            for kind in ("finished", "broken")
        }


# ---- what may happen to a file


def removed(chance: random.Random, path: Path) -> None:
    path.unlink(missing_ok=True)


def cut(chance: random.Random, path: Path) -> None:
    found = path.read_bytes()
    path.write_bytes(found[: chance.randrange(len(found) + 1)])


def flipped(chance: random.Random, path: Path) -> None:
    found = bytearray(path.read_bytes() or b"\0")
    for _ in range(chance.choice([1, 1, 3, 50])):
        found[chance.randrange(len(found))] = chance.randrange(256)
    path.write_bytes(found)


def foreign(chance: random.Random, path: Path) -> None:
    path.write_bytes(chance.randbytes(chance.choice([1, 10, 1000])))


def linked(chance: random.Random, path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.parents[2] / chance.choice(["precious", "nowhere", "."]))


def linked_to_itself(chance: random.Random, path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path)


def a_folder(chance: random.Random, path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def a_pipe(chance: random.Random, path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def nested(chance: random.Random, path: Path) -> None:
    """Writes endless brackets, alone or as a value."""
    depth = chance.choice([50, 400, 900, 100_000])
    brackets = chance.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth])
    text = path.read_text()
    at = chance.choice([0, text.find(":", chance.randrange(len(text))) + 1])
    path.write_text(f"{text[:at]} {brackets}, {text[at:]}" if at else f"{brackets}\n")


def other_value(chance: random.Random, path: Path) -> None:
    """Replaces a value, also one in a list or in a line of events, by a strange one."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = chance.randrange(len(lines))
    content = json.loads(lines[number])
    inside, place = content, chance.choice(list(content))
    while isinstance(inside[place], dict | list) and inside[place] and chance.random() < 0.7:
        inside = inside[place]
        place = chance.choice(list(inside)) if isinstance(inside, dict) else len(inside) - 1
    inside[place] = chance.choice(STRANGE)
    lines[number] = json.dumps(content)
    path.write_text("".join(f"{line}\n" for line in lines))


def other_key(chance: random.Random, path: Path) -> None:
    """Removes a value, or adds an unknown one."""
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        del lines[chance.randrange(len(lines)) :: chance.choice([1, 2, 100])]
        path.write_text("".join(f"{line}\n" for line in lines))
        return
    content = json.loads(path.read_text())
    inside: dict[str, Any] = content.get("job", content) if chance.random() < 0.5 else content
    del inside[chance.choice(list(inside))]
    inside[chance.choice(["probes", "unknown", "torch"])] = chance.choice(STRANGE)
    path.write_text(json.dumps(content))


Change = Callable[[random.Random, Path], None]
ANY_FILE: list[Change] = [removed, linked, linked_to_itself, a_folder, a_pipe]
A_FILE_THAT_IS_THERE: list[Change] = [*ANY_FILE, cut, flipped, foreign]
A_JSON_FILE: list[Change] = [*A_FILE_THAT_IS_THERE, nested] + [other_value, other_key] * 8


def change(chance: random.Random, path: Path) -> str:
    kinds = A_FILE_THAT_IS_THERE if path.is_file() else ANY_FILE
    kinds = A_JSON_FILE if path.is_file() and path.name in JSON else kinds
    chosen = chance.choice(kinds)
    chosen(chance, path)
    return f"{path.name} {chosen.__name__}"


# ---- what must hold all the same


def a_case(chance: random.Random) -> None:
    kind = chance.choice(["finished", "broken"])
    with tempfile.TemporaryDirectory() as place:
        out, precious = Path(place) / "runs", Path(place) / "precious"
        folder = out / JOB.folder_name
        folder.mkdir(parents=True)
        precious.write_text("precious")
        for name, content in originals()[kind].items():
            (folder / name).write_bytes(content)
        name = chance.choice(NAMES)
        told = change(chance, (out if name == "accuracy.png" else folder) / name)
        try:
            check_reading(chance, out)
            check_resuming(kind, name, out, folder)
            assert precious.read_text() == "precious"
            assert not list(out.rglob(".*.partial"))
        except BaseException as failed:
            failed.add_note(f"{kind}: {told}")
            raise


def check_reading(chance: random.Random, out: Path) -> None:
    answered(onepass("table", out))
    if chance.random() < 0.3:  # drawing takes its time
        shown = chance.choice(["both", "curves", "bars"])
        answered(onepass("figure", "accuracy", out, "--kind", shown, "-o", out / "accuracy.png"))


def check_resuming(kind: str, name: str, out: Path, folder: Path) -> None:
    """Checks that a refused run keeps its files, and that a resumed one has the right bits."""
    whole = originals()["finished"]
    before = {path.name: path.read_bytes() for path in folder.glob("*.pt") if path.is_file()}
    done = onepass(*RESUME, out)
    answered(done)
    if done.status:
        assert before == {path: (folder / path).read_bytes() for path in before}
    elif kind == "broken" or name != "result.json":
        now, then = (json.loads(entry) for entry in ((folder / "result.json").read_text(),
                                                 whole["result.json"]))  # fmt: skip
        assert [now[key] for key in SAME] == [then[key] for key in SAME]


def answered(done: Done) -> None:
    """Checks that a command worked, or printed one line."""
    assert "Traceback" not in done.err, done.err
    assert done.status in (0, 2), done.err
    if done.status:
        assert len(done.error) < 2000


def test_whatever_happens_to_a_folder_is_mended_or_told() -> None:
    fuzz("folders", a_case, few=8)
