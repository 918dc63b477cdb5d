"""Selects and sorts runs by their values and settings, for `--where` and `--sort`."""

from __future__ import annotations

import logging
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onepass.base import fileio
from onepass.base.errors import InputError, RunError, UnknownNameError
from onepass.base.text import quoted
from onepass.runs import lines
from onepass.runs.find import FoundRun, find_runs
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result

CONDITION = re.compile(r"(?s)\s*([\w.-]+)\s*(!=|>=|<=|=|>|<)(.*)")
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
log = logging.getLogger("onepass")


def find_results(*paths: Path, where: Sequence[str] = ()) -> list[Result]:
    """Returns the results of the finished runs in these folders and .jsonl files, if the run meets
    every condition in `where`. Those of run folders come first, because a folder holds more than a
    line of the same run. Raises a RunError if there are none, or if any result is damaged."""
    found = folders_first(find_runs(*paths, parse=fileio.parse_json))
    if passed := count_foreign_lines(found):
        files = ", ".join(map(str, passed))
        number = sum(passed.values())
        log.warning(
            "passed over, because they are not results of runs: %d lines of %s", number, files
        )
    for run in found:
        if run.is_unreadable_folder:
            log.warning("%s cannot be read: %s; its runs are missing here", run.where, run.problem)
    runs = [run for run in found if run.has_result]
    if not runs:
        raise RunError(f"there is no finished run in {', '.join(map(str, paths))}")
    # A damaged result raises an error even if no condition selects it.
    read = {run.where: run.result() for run in runs}
    matching = [read[run.where] for run in matching_runs(runs, where)]
    if not matching:
        raise RunError(f"no finished run matches --where {' --where '.join(map(quoted, where))}")
    warn_of_missing_points(matching)
    return matching


def folders_first(runs: Sequence[FoundRun]) -> list[FoundRun]:
    """Returns the runs with those in folders before those in lines, otherwise in their order."""
    return sorted(runs, key=lambda run: run.folder is None)


def count_foreign_lines(runs: Sequence[FoundRun]) -> dict[Path, int]:
    """Returns how many lines of each file are not results of runs, without files of 0."""
    return Counter(Path(lines.file_of_line(run.where) or "") for run in runs if run.foreign)


def warn_of_missing_points(found: Sequence[Result]) -> None:
    """Logs one warning if the events.jsonl of any of these finished runs lacks points."""
    without = [result.out for result in found if _lacks_points(result)]
    if without:
        others = f" (and {len(without) - 1} more)" if without[1:] else ""
        log.warning("%s%s lacks points of its run", Path(without[0]) / "events.jsonl", others)


def _lacks_points(result: Result) -> bool:
    if lines.file_of_line(result.out):
        return False
    try:
        return not RunFolder(Path(result.out)).has_all_points(result)
    except RunError:
        return True


def matching_runs(
    runs: Sequence[FoundRun], conditions: Sequence[str], sort: str | None = None
) -> list[FoundRun]:
    """Returns the runs that meet every condition, in their order, or sorted by the key `sort`;
    `-KEY` sorts the largest value first. Runs without the key come last. Raises an error for an
    invalid condition, or for a key that no run has."""
    tests = [_condition(text) for text in conditions]
    expect_known_keys(runs, [key for key, _ in tests])
    found = [run for run in runs if all(test(run.get(key)) for key, test in tests)]
    if sort is None:
        return found
    key, backwards = sort.removeprefix("-"), sort.startswith("-")
    expect_known_keys(runs, [key])
    known = [run for run in found if run.get(key) is not None]
    rest = [run for run in found if run.get(key) is None]
    return sorted(known, key=lambda run: _rank(run.get(key)), reverse=backwards) + rest


def expect_known_keys(runs: Sequence[FoundRun], keys: Sequence[str]) -> None:
    """Raises an UnknownNameError for a key that no run has."""
    for key in keys:
        if not any(run.has(key) for run in runs):
            valid = {name for run in runs for name in (*run.values, *run.settings)}
            raise UnknownNameError("key", key, valid | {"where", "state"})


def _rank(value: Any) -> tuple[bool, float, str]:
    """Returns a sort key: numbers come first, by size, then other values by their text."""
    number = _number(value)
    return (number is None, number or 0.0, "" if number is not None else str(value))


def _condition(text: str) -> tuple[str, Callable[[Any], bool]]:
    """Returns the key of a condition, and a test of its value; raises an InputError if the text is
    not a condition."""
    match = CONDITION.fullmatch(text)
    if match is None:
        forms = "KEY=VALUE, KEY!=VALUE, KEY>NUMBER, KEY>=NUMBER, KEY<NUMBER or KEY<=NUMBER"
        raise InputError(f"--where takes {forms}, not {quoted(text)}")
    key, sign, wanted = match[1], match[2], match[3].strip()
    if sign in COMPARISONS:
        return key, _compared(COMPARISONS[sign], wanted, text)
    return key, lambda value: _equal(value, wanted) == (sign == "=")


def _compared(compare: Callable[[Any, Any], bool], wanted: str, text: str) -> Callable[[Any], bool]:
    limit = _number(wanted)
    if limit is None:
        raise InputError(f"--where {text} compares with {quoted(wanted)}, which is not a number")

    def test(value: Any) -> bool:
        number = _number(value)
        return number is not None and compare(number, limit)

    return test


def _equal(value: Any, wanted: str) -> bool:
    """Returns whether a value equals a text. If both are numbers they are compared as such, so that
    5e-4 is 0.0005. Otherwise the texts are compared; true, false and none, which JSON calls null,
    in any case of letters."""
    number, other = _number(value), _number(wanted)
    if number is not None and other is not None:
        return number == other
    if value is None:
        return wanted.lower() in ("none", "null")
    if isinstance(value, bool):
        return str(value).lower() == wanted.lower()
    return str(value) == wanted


def _number(value: Any) -> float | None:
    """Returns a finite number, or the one that a text spells, because some settings are texts; None
    for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
