"""Results as lines: one finished run each, in a .jsonl file that only grows.

A line is what a result.json holds, without the folder, which is a matter of one machine; whoever
reads it is told the file and the number instead: `results/lines/cifar100.jsonl:3`.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from onepass.base import fileio
from onepass.base.errors import RunError
from onepass.runs.result import Result

SUFFIX = ".jsonl"
LOCATION = re.compile(rf"(?s)(?P<file>.+{re.escape(SUFFIX)}):(?P<number>[1-9]\d{{0,9}})", re.ASCII)
log = logging.getLogger("onepass")


def read_results(path: Path) -> list[Result]:
    """Returns the results of a file, in its order; each one's `out` is the place of its line."""
    return [Result.read(_parse_line(line, place), place) for place, line in located_lines(path)]


def append_result(path: Path, result: Result, *, once: bool = False) -> None:
    """Adds one line, whole or not at all, whoever else adds to the file at the same time. What a
    kill left of a line before it is cut off. `once`: not if the file has that run already."""
    expect_lines_name(path)
    line = {name: value for name, value in result.as_json().items() if name != "out"}
    known = json.dumps({"identity": result.identity})[1:-1]
    fileio.append_line(path, json.dumps(line), unless=known if once else "")


def expect_lines_name(path: Path) -> None:
    if path.suffix != SUFFIX:
        raise RunError(f"a file of lines must end in {SUFFIX}, not {path.name!r}")


def located_lines(path: Path) -> list[tuple[str, str]]:
    """The place and the text of each line that says something; not of a last one that was cut
    short."""
    *whole, last = _read_text(path).split("\n")
    if last.strip():  # no line end: written by hand, or cut short
        place = f"{path}:{len(whole) + 1}"
        try:
            _parse_line(last, place)
        except RunError:
            log.warning("%s is passed over: it was cut short", place)
        else:
            whole.append(last)
    return [(f"{path}:{n}", line) for n, line in enumerate(whole, start=1) if line.strip()]


def _parse_line(line: str, place: str) -> dict[str, Any]:
    """Returns what a line says; raises a RunError if it is no JSON object."""
    try:
        return fileio.parse_json_object(line)
    except ValueError as problem:
        raise RunError(f"{place} is damaged: {problem}") from None


def is_lines_file(path: Path) -> bool:
    return path.suffix == SUFFIX and not path.is_dir()


def file_of_line(out: str) -> str | None:
    """The file in which a result lies, if it is one of a line and not of a folder.

    >>> file_of_line("results/lines/cifar100.jsonl:3"), file_of_line("runs/er-digits-m100-s0")
    ('results/lines/cifar100.jsonl', None)
    """
    found = LOCATION.fullmatch(out)
    return found["file"] if found else None


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise RunError(f"{path} is not a file" if path.exists() else f"there is no file {path}")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise RunError(f"{path} is damaged: it is not text") from None
