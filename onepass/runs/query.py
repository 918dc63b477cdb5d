"""Runs as they lie there, finished or not: found, filtered and sorted.

A list may be of many thousand runs, so no more is read of each than is asked for.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from onepass.base import fileio
from onepass.base.errors import InputError, RunError, UnknownNameError
from onepass.base.text import natural, quoted
from onepass.runs import lines
from onepass.runs.result import Result

State = Literal["finished", "broken", "damaged"]
Parse = Callable[[str], Any]
OWN = ("where", "state", "problem")
SETTINGS = "settings."
OTHER_NAMES = {"any-time": "anytime_accuracy"}
TAIL = 1 << 16  # bytes of events.jsonl, for its last line
CONDITION = re.compile(r"(?s)\s*([\w.-]+)\s*(!=|>=|<=|=|>|<)(.*)")
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Entry:
    """A run, by the place where it is: a folder, or a line.

    `values` are those of its result; of a broken run what its run.json says of the same names, and
    how many of how many `steps_done`. `problem` says what is wrong with a damaged one.
    """

    where: str
    state: State
    values: dict[str, Any]
    problem: str = ""
    folder: str | None = None

    @cached_property
    def description(self) -> dict[str, Any]:
        """What run.json says; nothing if there is none or it is damaged."""
        if self.folder is None or not (path := Path(self.folder, "run.json")).is_file():
            return {}
        try:
            return _read(str(path))
        except (OSError, ValueError):
            return {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments. An older line does not have them."""
        found = self.values.get("settings") or self.description.get("learner")
        return found if isinstance(found, dict) else {}

    def has(self, key: str) -> bool:
        return key in OWN or any(_bare(key) in source for source in self._sources(key))

    def get(self, key: str) -> Any:
        """By the name of a value, or of a setting (`lr`, or `settings.lr` where there are both)."""
        if key in OWN:
            return getattr(self, key)
        if key in self.values:  # nearly always, and very often
            return self.values[key]
        name = _bare(key)
        return next((one[name] for one in self._sources(key) if name in one), None)

    def _sources(self, key: str) -> Iterator[dict[str, Any]]:
        """Where it may stand, one after another: a later one is read only if it has to be."""
        if not key.startswith(SETTINGS):
            yield self.values
        yield self.settings
        if not key.startswith(SETTINGS):
            yield self.description


def _bare(key: str) -> str:
    return OTHER_NAMES.get(key, key.removeprefix(SETTINGS))


# ---- finding


def find(*paths: Path, parse: Parse = fileio.glanced) -> list[Entry]:
    """Every run at or below folders, in natural order of their paths, and every line of files; of
    files that lie in a folder only what is a run, or damaged, since searches have lines too. What
    lies at or below several of the paths is there once."""
    found: list[Entry] = []
    read: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found += sorted(_below(path, parse), key=lambda entry: natural(entry.where))
        elif not lines.is_lines(path):
            raise RunError(f"there is no folder {path}, and no .jsonl file of that name")
        for file in [one for one in lines.files_at(path) if one not in read]:
            read.add(file)
            other = set() if file in paths else of_no_run(file)
            found += [_line(text, at, parse) for at, text in lines.texts(file) if at not in other]
    if not found:
        raise RunError(f"there is no run in {', '.join(map(str, paths))}")
    return list({entry.where: entry for entry in found}.values())


def of_no_run(file: Path) -> set[str]:
    """The places of lines that are whole, and lack what every result says."""
    found = set()
    for place, text in lines.texts(file):
        try:
            content = lines.content(text, place)
        except RunError:  # listed as damaged
            continue
        if any(name not in content for name in lines.NEEDED):
            found.add(place)
    return found


def find_one(name: str, paths: Sequence[Path] = ()) -> Entry:
    """A run by its folder, by FILE.jsonl:NUMBER, or by the first letters of its identity (or of its
    state's checksum) among those in `paths`. It is read as a whole, and refused if damaged."""
    file, folder = lines.file_of(name), Path(name)
    if file:
        found = [one for one in find(Path(file), parse=fileio.parsed) if one.where == name]
        if not found:
            raise RunError(f"there is no line {name}")
    elif folder.is_dir():
        found = list(_in(name, {one.name for one in folder.iterdir()}, fileio.parsed))
        if not found:
            raise RunError(f"{name} is not a run's folder; onepass runs list shows what is in it")
    else:
        found = _beginning_with(name, paths)
    entry = found[0]
    if entry.problem:
        raise RunError(f"{entry.where} is damaged: {entry.problem}")
    if entry.state == "finished":
        content = {**lines.LACKING, **entry.values, "out": entry.where}
        Result.read(content, Path(entry.where), out=entry.where)  # refuses what is of a wrong type
    return entry


def _beginning_with(letters: str, paths: Sequence[Path]) -> list[Entry]:
    if not paths:
        raise RunError(
            f"{quoted(letters)} is neither a run's folder nor FILE.jsonl:NUMBER; to find a run by "
            "the first letters of its identity, say also in which folders or files"
        )
    known: dict[str, list[Entry]] = {}
    for entry in find(*paths, parse=fileio.parsed):
        for key in ("identity", "state_sha256"):
            if str(entry.get(key) or "").startswith(letters):
                known.setdefault(str(entry.get("identity") or entry.get(key)), []).append(entry)
    if len(known) != 1:
        told = "several runs have" if known else "no run has"
        raise RunError(f"{told} an identity that begins with {quoted(letters)}")
    return next(iter(known.values()))


def _below(top: Path, parse: Parse) -> Iterator[Entry]:
    """Links to folders are not followed."""
    waiting = [str(top)]
    while waiting:
        folder = waiting.pop()
        names = set()
        try:
            with os.scandir(folder) as content:
                for one in content:
                    if one.is_dir(follow_symlinks=False):
                        waiting.append(one.path)
                    elif one.is_file():
                        names.add(one.name)
        except OSError as problem:
            yield _damaged(folder, problem.strerror or str(problem))
        yield from _in(folder, names, parse)


def _in(folder: str, names: set[str], parse: Parse) -> Iterator[Entry]:
    """The run of a folder that holds files of these names, if they are a run's."""
    if "result.json" in names:
        yield _finished(folder, parse)
    elif "run.json" in names:
        yield _broken(folder)


def _finished(folder: str, parse: Parse) -> Entry:
    try:
        return _checked(folder, _read(f"{folder}/result.json", parse), folder)
    except (OSError, ValueError) as problem:
        return _damaged(folder, f"result.json: {problem}", folder)


def _line(text: str, place: str, parse: Parse) -> Entry:
    try:
        return _checked(place, _object(text, parse))
    except ValueError as problem:
        return _damaged(place, str(problem))


def _checked(where: str, values: dict[str, Any], folder: str | None = None) -> Entry:
    for name, kind in lines.NEEDED.items():
        value = values.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            problem = f"its {name} is of the wrong type" if name in values else f"it has no {name}"
            return _damaged(where, problem, folder)
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            return _damaged(where, f"its {name} is no number", folder)
    return Entry(where, "finished", values, folder=folder)


def _broken(folder: str) -> Entry:
    """A run that has no result yet: it was stopped, or still runs."""
    said = Entry(folder, "broken", {}, folder=folder).description
    job = said.get("job")
    if not isinstance(job, dict):
        return _damaged(folder, "run.json: it describes no run", folder)
    names = ("identity", "variant", "dataset", "steps")
    values = {**job, **{name: said[name] for name in names if name in said}}
    for name in ("settings", "stream"):  # of these the job has only what was chosen
        values.pop(name, None)
    values["steps_done"] = _steps_done(Path(folder))
    return Entry(folder, "broken", values, folder=folder)


def _steps_done(folder: Path) -> int:
    """After how many steps the learner was last scored; 0 if it never was, or if that is not told
    any more."""
    path = folder / "events.jsonl"
    if not path.is_file():
        return 0
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            *_, last, _ = (b"\n" + file.read()).split(b"\n")  # what has no end is not whole
        step = _object(last.decode()).get("step")
    except (OSError, ValueError):
        return 0
    return step if isinstance(step, int) else 0


def _damaged(where: str, problem: str, folder: str | None = None) -> Entry:
    return Entry(where, "damaged", {}, problem, folder)


def _read(path: str, parse: Parse = fileio.parsed) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a Path takes longer than the file
        return _object(file.read(), parse)


def _object(text: str, parse: Parse = fileio.parsed) -> dict[str, Any]:
    try:
        content = parse(text)
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    return content


# ---- choosing


def chosen(entries: Sequence[Entry], conditions: Sequence[str], sort: str | None) -> list[Entry]:
    """Those that meet every condition, in order of a key (`-KEY`: the largest first); those that do
    not have it come last."""
    tests = [_condition(text) for text in conditions]
    check_keys(entries, [key for key, _ in tests])
    found = [one for one in entries if all(test(one.get(key)) for key, test in tests)]
    if sort is None:
        return found
    key, backwards = sort.removeprefix("-"), sort.startswith("-")
    check_keys(entries, [key])
    known = [one for one in found if one.get(key) is not None]
    rest = [one for one in found if one.get(key) is None]
    return sorted(known, key=lambda one: _rank(one.get(key)), reverse=backwards) + rest


def of_results(results: Sequence[Result], conditions: Sequence[str]) -> list[Result]:
    """Those that meet every condition, of which there must be one."""
    if not conditions:
        return list(results)
    entries = [
        Entry(one.out, "finished", vars(one), folder=None if lines.file_of(one.out) else one.out)
        for one in results
    ]
    places = {entry.where for entry in chosen(entries, conditions, None)}
    if not places:
        raise RunError(f"no finished run is such: {' and '.join(map(quoted, conditions))}")
    return [one for one in results if one.out in places]


def check_keys(entries: Sequence[Entry], keys: Sequence[str]) -> None:
    for key in keys:
        if not any(entry.has(key) for entry in entries):
            valid = {name for one in entries for name in (*one.values, *one.settings)}
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
