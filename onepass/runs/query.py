"""Which runs are meant: conditions on their values and settings, and an order."""

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
    """Returns the results of all finished runs in folders and lines that meet every condition.
    Runs' own folders come first: of a run that lies in both, the one with its events is shown."""
    found = folders_first(find_runs(*paths, parse=fileio.parse_json))
    if passed := count_foreign_lines(found):
        places = ", ".join(map(str, passed))
        number = sum(passed.values())
        log.warning(
            "passed over, since they are no results of runs: %d lines of %s", number, places
        )
    runs = [run for run in found if run.has_result]
    if not runs:
        raise RunError(f"there is no finished run in {', '.join(map(str, paths))}")
    read = {run.where: run.result() for run in runs}  # a damaged one is refused, whatever is asked
    matching = [read[run.where] for run in matching_runs(runs, where)]
    if not matching:
        raise RunError(f"no finished run matches --where {' --where '.join(map(quoted, where))}")
    warn_of_missing_points(matching)
    return matching


def folders_first(runs: Sequence[FoundRun]) -> list[FoundRun]:
    return sorted(runs, key=lambda run: run.folder is None)


def count_foreign_lines(runs: Sequence[FoundRun]) -> dict[Path, int]:
    """Returns how many lines of each file are of something else than a run."""
    return Counter(Path(lines.file_of_line(run.where) or "") for run in runs if run.foreign)


def warn_of_missing_points(found: Sequence[Result]) -> None:
    """Logs one line if events.jsonl of finished runs is not whole any more."""
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
    """Returns those that meet every condition, in order of a key (`-KEY`: the largest first); those
    without a value for it come last."""
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
    """Raises UnknownNameError for a key that no run has."""
    for key in keys:
        if not any(run.has(key) for run in runs):
            valid = {name for run in runs for name in (*run.values, *run.settings)}
            raise UnknownNameError("key", key, valid | {"where", "state"})


def _rank(value: Any) -> tuple[bool, float, str]:
    """Numbers by their size, before whatever else there is, by how it is written."""
    number = _number(value)
    return (number is None, number or 0.0, "" if number is not None else str(value))


def _condition(text: str) -> tuple[str, Callable[[Any], bool]]:
    """The key, and what its value has to be."""
    match = CONDITION.fullmatch(text)
    if match is None:
        forms = "KEY=VALUE, KEY!=VALUE, KEY>NUMBER or KEY<NUMBER"
        raise InputError(f"--where takes {forms}, not {quoted(text)}")
    key, sign, wanted = match[1], match[2], match[3].strip()
    if sign in COMPARISONS:
        return key, _compared(COMPARISONS[sign], wanted, text)
    return key, lambda value: _equal(value, wanted) == (sign == "=")


def _compared(compare: Callable[[Any, Any], bool], wanted: str, text: str) -> Callable[[Any], bool]:
    limit = _number(wanted)
    if limit is None:
        raise InputError(f"--where {text} compares with {quoted(wanted)}, which is no number")

    def test(value: Any) -> bool:
        number = _number(value)
        return number is not None and compare(number, limit)

    return test


def _equal(value: Any, wanted: str) -> bool:
    """As numbers if both are, so that 5e-4 is 0.0005; otherwise as JSON or as a text."""
    number, other = _number(value), _number(wanted)
    if number is not None and other is not None:
        return number == other
    if value is None or isinstance(value, bool):
        return str(value).lower() == wanted.lower()
    return str(value) == wanted


def _number(value: Any) -> float | None:
    """Also of a text, as which settings are given."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
