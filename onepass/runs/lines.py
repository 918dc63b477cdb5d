"""Results as lines: one finished run each, in a .jsonl file that only grows.

A line is what a result.json holds, without the folder, which is a matter of one machine; whoever
reads it is told the file and the number instead: `results/lines/cifar100.jsonl:3`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onepass.base import fileio
from onepass.base.errors import RunError
from onepass.runs.result import Result

SUFFIX = ".jsonl"
PLACE = re.compile(rf"(?s)(?P<file>.+{re.escape(SUFFIX)}):(?P<number>[1-9]\d{{0,9}})", re.ASCII)
NUMBER = (int, float)
# What every line of a run says, and its type; one that lacks any of it is of something else, such
# as a benchmark or a search.
NEEDED: dict[str, Any] = {
    "method": str,
    "dataset": str,
    "memory": int,
    "seed": int,
    "accuracy": NUMBER,
    "seconds": NUMBER,
}
UNKNOWN = (
    *("forgetting", "forgetting_all_tasks", "mean_task_accuracy", "anytime_accuracy"),
    *("prequential_accuracy", "steps", "steps_per_second", "trained_per_sample"),
    *("scored_per_sample", "memory_bytes"),
)
# What lines of earlier days do not tell, and a result cannot be without.
LACKING: dict[str, Any] = {
    **{"accuracy_matrix": [], "class_accuracy": [], "params_sha256": "", "state_sha256": ""},
    **dict.fromkeys(UNKNOWN),
}
log = logging.getLogger("onepass")


def files_at(path: Path) -> list[Path]:
    """The files of lines that a path stands for: itself, or those in a folder. What lies in a run's
    own folder is its record."""
    if is_lines(path):
        return [path]
    own = (path / "run.json").exists() or (path / "result.json").exists()
    return [] if own else [one for one in sorted(path.glob(f"*{SUFFIX}")) if one.is_file()]


def read(path: Path) -> list[Result]:
    """The results of a file, in its order; each one's `out` is the place of its line."""
    return [_result(content(line, place), place) for place, line in texts(path)]


def read_among_others(path: Path) -> tuple[list[Result], int]:
    """The results of a file that also holds lines of other things, and how many of those."""
    contents = [(content(line, place), place) for place, line in texts(path)]
    found = [_result(one, place) for one, place in contents if all(name in one for name in NEEDED)]
    return found, len(contents) - len(found)


def _result(found: dict[str, Any], place: str) -> Result:
    return Result.read({**LACKING, **found, "out": place}, Path(place), out=place)


def append(path: Path, result: Result, *, once: bool = False) -> None:
    """Adds one line, whole or not at all, whoever else adds to the file at the same time. What a
    kill left of a line before it is cut off. `once`: not if the file has that run already."""
    if path.suffix != SUFFIX:
        raise RunError(f"a file of lines must end in {SUFFIX}, not {path.name!r}")
    line = {name: value for name, value in result.as_json().items() if name != "out"}
    known = json.dumps({"identity": result.identity})[1:-1]
    fileio.append_line(path, json.dumps(line), unless=known if once else "")


def texts(path: Path) -> list[tuple[str, str]]:
    """The place and the text of each line that says something; not of a last one that was cut
    short."""
    *whole, last = _text(path).split("\n")
    if last.strip():  # no line end: written by hand, or cut short
        place = f"{path}:{len(whole) + 1}"
        try:
            content(last, place)
        except RunError:
            log.warning("%s is passed over: it was cut short", place)
        else:
            whole.append(last)
    return [(f"{path}:{n}", line) for n, line in enumerate(whole, start=1) if line.strip()]


def content(line: str, place: str, parse: Callable[[str], Any] = fileio.parsed) -> dict[str, Any]:
    """What a line says; nothing is asked of it but that it is a JSON object."""
    try:
        found = parse(line)
    except ValueError:
        raise RunError(f"{place} is damaged: it is not JSON") from None
    if not isinstance(found, dict):
        raise RunError(f"{place} is damaged: it is not an object")
    return found


def is_lines(path: Path) -> bool:
    return path.suffix == SUFFIX and not path.is_dir()


def file_of(out: str) -> str | None:
    """The file in which a result lies, if it is one of a line and not of a folder.

    >>> file_of("results/lines/cifar100.jsonl:3"), file_of("runs/er-digits-m100-s0")
    ('results/lines/cifar100.jsonl', None)
    """
    found = PLACE.fullmatch(out)
    return found["file"] if found else None


def _text(path: Path) -> str:
    if not path.is_file():
        raise RunError(f"{path} is not a file" if path.exists() else f"there is no file {path}")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise RunError(f"{path} is damaged: it is not text") from None
