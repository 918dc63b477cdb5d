"""Results as lines of a .jsonl file, which only grows: one line for each finished run.

A line holds what result.json holds, except for `out`, the run's folder, which only one machine has.
A result that is read from a line has the file and the number of the line as its `out`:
`results/lines/cifar100.jsonl:3`.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from onepass.base import fileio
from onepass.base.errors import RunError
from onepass.base.text import BYTE_ORDER_MARK, describe_encoding
from onepass.runs.result import Result

SUFFIX = ".jsonl"
LOCATION = re.compile(rf"(?s)(?P<file>.+{re.escape(SUFFIX)}):(?P<number>[1-9]\d{{0,9}})", re.ASCII)
log = logging.getLogger("onepass")


def read_results(path: Path) -> list[Result]:
    """Returns the results of a file, in order. Their `out` is FILE.jsonl:NUMBER. Raises a RunError
    if a line is damaged, or if there is no such file."""
    return [Result.read(_parse_line(line, where), where) for where, line in located_lines(path)]


def append_result(path: Path, result: Result, *, once: bool = False) -> None:
    """Adds a result to a file as one line, whole or not at all, even if other processes add lines
    at the same time. A last line that a kill cut short is removed first. With `once`, adds nothing
    if the file has a line of this run's identity."""
    expect_lines_name(path)
    line = {name: value for name, value in result.as_json().items() if name != "out"}
    # The text `"identity": "..."`, which a line of this run holds
    known = json.dumps({"identity": result.identity})[1:-1]
    fileio.append_line(path, json.dumps(line), unless=known if once else "")


def expect_appendable(path: Path) -> None:
    """Raises a RunError or WriteError if `append_result` could add no line to this file, which is
    made if it is missing."""
    expect_lines_name(path)
    fileio.expect_growable(path)


def expect_lines_name(path: Path) -> None:
    """Raises a RunError unless the name of a file ends in .jsonl."""
    if path.suffix != SUFFIX:
        raise RunError(f"the name of a results file must end in {SUFFIX}, not {path.name!r}")


def located_lines(path: Path) -> list[tuple[str, str]]:
    """Returns FILE.jsonl:NUMBER and the text of each line that is not empty. A last line that was
    cut short is left out, with a warning. Raises a RunError if the file cannot be read as text."""
    *whole, last = _read_text(path).split("\n")
    if last.strip():  # no line end: edited by hand, or cut short
        where = f"{path}:{len(whole) + 1}"
        try:
            _parse_line(last, where)
        except RunError:
            log.warning("%s is passed over: it was cut short", where)
        else:
            whole.append(last)
    return [(f"{path}:{n}", line) for n, line in enumerate(whole, start=1) if line.strip()]


def _parse_line(line: str, where: str) -> dict[str, Any]:
    """Returns the content of a line; raises a RunError if it is not a JSON object."""
    try:
        return fileio.parse_json_object(line)
    except ValueError as problem:
        raise RunError(f"{where} is damaged: {problem}") from None


def is_lines_file(path: Path) -> bool:
    """Returns whether a path is that of a results file, which may not exist."""
    return path.suffix == SUFFIX and not path.is_dir()


def file_of_line(out: str) -> str | None:
    """Returns the file of a result that was read from a line, from the result's `out`; None if the
    result is from a run folder.

    >>> file_of_line("results/lines/cifar100.jsonl:3"), file_of_line("runs/er-digits-m100-s0")
    ('results/lines/cifar100.jsonl', None)
    """
    found = LOCATION.fullmatch(out)
    return found["file"] if found else None


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise RunError(f"{path} is not a file" if path.exists() else f"there is no file {path}")
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as problem:
        raise RunError(f"{path} {describe_encoding(problem)}") from None
    if text.startswith(BYTE_ORDER_MARK):
        raise RunError(f"{path} begins with a byte order mark: save it as UTF-8 without BOM")
    return text
