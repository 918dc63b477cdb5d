"""Finds runs in folders and in .jsonl files, whether finished, broken or damaged.

Lists, tables, figures and reports all find their runs here. There may be many thousand, so a
run.json beside a result is read only when a value from it is needed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from onepass.base import fileio
from onepass.base.errors import RunError
from onepass.base.text import natural_sort_key, quoted
from onepass.runs import early_settings, lines
from onepass.runs.folder import DAMAGED_NAME
from onepass.runs.result import Result, accuracies_in_matrix

RunState = Literal["finished", "broken", "damaged"]  # broken: without a result, perhaps running
Parse = Callable[[str], Any]
RESULT, RUN = "result.json", "run.json"
OWN = ("where", "state", "problem")  # the fields of a FoundRun that are keys too
SETTINGS = "settings."
BEGUN = ("source", "processor", "torch")  # in run.json from the first versions on
OTHER_NAMES = {"any-time": "anytime_accuracy"}
TAIL = 1 << 16  # bytes of events.jsonl, for its last line
SET_ASIDE = "it was set aside as damaged"
NUMBER = (int, float)
# Every line of a run has these fields. A line without one of them is not a run's: it comes from a
# benchmark or a search, for example.
NEEDED: dict[str, Any] = {
    "method": str,
    "dataset": str,
    "memory": int,
    "seed": int,
    "accuracy": NUMBER,
    "seconds": NUMBER,
}


@dataclass(frozen=True)
class FoundRun:
    """A run that was found, and `where`: its folder, or FILE.jsonl:NUMBER.

    `values` are the fields of its result. A broken run has no result: there `values` come from its
    run.json, with `steps_done`. A damaged run has no values, and `problem` is the reason. `folder`
    is None for a line. `foreign` marks a line that is not a run's.
    """

    where: str
    state: RunState
    values: dict[str, Any]
    problem: str = ""
    folder: str | None = None
    foreign: bool = False

    @property
    def has_result(self) -> bool:
        """True if the run has a result, damaged or not. A folder that was set aside as damaged
        counts as without."""
        if self.state != "damaged" or self.folder is None:
            return self.state != "broken" and not self.foreign and not self.is_unreadable_folder
        return self.problem != SET_ASIDE and Path(self.folder, RESULT).exists()

    @property
    def is_unreadable_folder(self) -> bool:
        """True for a folder that the system does not let us list: it may hold many runs."""
        return (
            self.state == "damaged" and self.folder is None and not lines.file_of_line(self.where)
        )

    @cached_property
    def description(self) -> dict[str, Any]:
        """The content of run.json; empty if it is missing or damaged."""
        if self.folder is None or not (path := Path(self.folder, RUN)).is_file():
            return {}
        try:
            return _read(str(path))
        except (OSError, ValueError):
            return {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The arguments of the learner's constructor, those of an early version completed; empty if
        they are unknown."""
        found = self.values.get("settings") or self.description.get("learner")
        recorded = found if isinstance(found, dict) else {}
        method, variant = (str(self.values.get(name) or "") for name in ("method", "variant"))
        return early_settings.completed(method, variant, recorded)

    def result(self) -> Result:
        """Returns the result of the run; raises a RunError if it is damaged or there is none."""
        source = f"{self.folder}/{RESULT}" if self.folder else self.where
        if self.problem:
            raise RunError(f"{source} is damaged: {self.problem.removeprefix(f'{RESULT}: ')}")
        values = self.values
        if self.folder:  # early results have these in run.json only
            begun = self.description
            early = {"settings": self.settings, **{name: begun.get(name) for name in BEGUN}}
            missing = {name: value for name, value in early.items() if not values.get(name)}
            values = {**values, **{name: value for name, value in missing.items() if value}}
        return Result.read(values, self.where, source)

    def has(self, key: str) -> bool:
        """Returns whether the run has a value that `get` finds by this key; it may be None."""
        return key in OWN or any(_bare(key) in source for source in self._sources(key))

    def get(self, key: str) -> Any:
        """Returns a value by its name: of OWN, else of the result, the settings or run.json, in
        this order; None if none has it. `settings.NAME` means the setting only."""
        if key in OWN:
            return getattr(self, key)
        if key in self.values:  # the common case first: this method is called very often
            return self.values[key]
        name = _bare(key)
        return next((source[name] for source in self._sources(key) if name in source), None)

    def _sources(self, key: str) -> Iterator[dict[str, Any]]:
        """Yields the dictionaries that may hold a key. Each is read only when it is reached."""
        if not key.startswith(SETTINGS):
            yield self.values
        yield self.settings
        if not key.startswith(SETTINGS):
            yield self.description


def _bare(key: str) -> str:
    return OTHER_NAMES.get(key, key.removeprefix(SETTINGS))


def find_runs(*paths: Path, parse: Parse = fileio.parse_json_fast) -> list[FoundRun]:
    """Returns every run at or below the given folders, in natural order of their paths, and every
    line of .jsonl files, given or found in a folder. A folder or line that several paths lead to
    comes once. Raises a RunError if there is no run, or if a path is neither a folder nor a .jsonl
    file."""
    found: list[FoundRun] = []
    for path in paths:
        if path.is_dir():
            found += sorted(_below(path, parse), key=lambda run: natural_sort_key(run.where))
        elif not lines.is_lines_file(path):
            raise RunError(f"{path} is neither a folder nor a .jsonl file")
        else:
            found += _runs_in_lines(path, parse)
    if not found:
        raise RunError(f"there is no run in {', '.join(map(str, paths))}")
    return list({run.where: run for run in found}.values())


def find_run(name: str, paths: Sequence[Path] = ()) -> FoundRun:
    """Returns the run that `name` names: a folder, FILE.jsonl:NUMBER, or the first letters of the
    identity (or of the state's checksum) of a run in `paths`. Raises a RunError if the run is
    damaged, or if the name fits no run or several."""
    file, folder = lines.file_of_line(name), Path(name)
    if file:
        found = [run for run in find_runs(Path(file), parse=fileio.parse_json) if run.where == name]
        if not found:
            raise RunError(f"there is no line {name}, or it is empty")
    elif folder.is_dir():
        found = list(
            _run_in_folder(name, {path.name for path in folder.iterdir()}, fileio.parse_json)
        )
        if not found:
            raise RunError(f"{name} is not a run's folder; `onepass runs list` shows what is in it")
    else:
        found = _beginning_with(name, paths)
    run = found[0]
    if run.state != "broken":
        run.result()  # raises an error if the run is damaged
    return run


def _beginning_with(letters: str, paths: Sequence[Path]) -> list[FoundRun]:
    """Returns the places of the one run whose identity or state checksum begins with these letters:
    its folder and its lines. Raises a RunError if there is none, or if there are several runs."""
    if not paths:
        raise RunError(
            f"{quoted(letters)} is neither a run's folder nor FILE.jsonl:NUMBER; to find a run by "
            "the first letters of its identity, name the folders or files to search too"
        )
    known: dict[str, list[FoundRun]] = {}
    for run in find_runs(*paths, parse=fileio.parse_json):
        for key in ("identity", "state_sha256"):
            if str(run.get(key) or "").startswith(letters):
                known.setdefault(str(run.get("identity") or run.get(key)), []).append(run)
    if len(known) != 1:
        count = "give more letters: several runs have" if known else "no run has"
        raise RunError(f"{count} an identity that begins with {quoted(letters)}")
    return next(iter(known.values()))


def _below(top: Path, parse: Parse) -> Iterator[FoundRun]:
    """Yields the runs at or below a folder, without following links to folders. A folder that
    cannot be read is yielded as a damaged run."""
    waiting = [str(top)]
    while waiting:
        folder = waiting.pop()
        names = set()
        try:
            with os.scandir(folder) as content:
                for item in content:
                    if item.is_dir(follow_symlinks=False):
                        waiting.append(item.path)
                    elif item.is_file():
                        names.add(item.name)
        except OSError as problem:
            yield _damaged(folder, problem.strerror or str(problem))
        yield from _run_in_folder(folder, names, parse)
        if not {RESULT, RUN} & names:  # the .jsonl files of a run folder do not hold results
            for name in (name for name in names if name.endswith(lines.SUFFIX)):
                yield from _runs_in_lines(Path(folder, name), parse)


def _runs_in_lines(file: Path, parse: Parse) -> Iterator[FoundRun]:
    for where, text in lines.located_lines(file):
        yield _run_of_line(text, where, parse)


def _run_in_folder(folder: str, names: set[str], parse: Parse) -> Iterator[FoundRun]:
    """Yields the run of a folder, whose files have these names; yields nothing if it is not a run
    folder."""
    if DAMAGED_NAME in folder and {RESULT, RUN} & names:
        yield _damaged(folder, SET_ASIDE, folder)
    elif RESULT in names:
        yield _finished(folder, parse)
    elif RUN in names:
        yield _broken(folder)


def _finished(folder: str, parse: Parse) -> FoundRun:
    try:
        return _checked(folder, _read(f"{folder}/{RESULT}", parse), folder)
    except (OSError, ValueError) as problem:
        return _damaged(folder, f"{RESULT}: {problem}", folder)


def _run_of_line(text: str, where: str, parse: Parse) -> FoundRun:
    try:
        content = fileio.parse_json_object(text, parse)
    except ValueError as problem:
        return _damaged(where, str(problem))
    return replace(_checked(where, content), foreign=not NEEDED.keys() <= content.keys())


def _checked(where: str, values: dict[str, Any], folder: str | None = None) -> FoundRun:
    """Returns a finished run with these values; a damaged one if a NEEDED value is missing or of
    the wrong type, or if a number is not finite."""
    for name, kind in NEEDED.items():
        value = values.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            problem = f"its {name} is of the wrong type" if name in values else f"it has no {name}"
            return _damaged(where, problem, folder)
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            return _damaged(where, f"its {name} is not a finite number", folder)
    return FoundRun(where, "finished", accuracies_in_matrix(values) | values, folder=folder)


def _broken(folder: str) -> FoundRun:
    """Returns a run without a result, which was stopped or is still running; a damaged one if its
    run.json describes no run."""
    description = FoundRun(folder, "broken", {}, folder=folder).description
    job = description.get("job")
    if not isinstance(job, dict):
        return _damaged(folder, f"{RUN}: it describes no run", folder)
    names = ("identity", "variant", "dataset", "steps")
    values = {**job, **{name: description[name] for name in names if name in description}}
    for name in ("settings", "stream"):  # a job holds only the non-defaults of these
        values.pop(name, None)
    values["steps_done"] = _steps_done(Path(folder))
    return FoundRun(folder, "broken", values, folder=folder)


def _steps_done(folder: Path) -> int:
    """Returns the step at which the learner was last scored; 0 if it never was, or if events.jsonl
    is missing or damaged."""
    path = folder / "events.jsonl"
    if not path.is_file():
        return 0
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            # The text after the last line end is empty, or a line that a kill cut short.
            *_, last, _ = (b"\n" + file.read()).split(b"\n")
        step = fileio.parse_json_object(last.decode()).get("step")
    except (OSError, ValueError):
        return 0
    return step if isinstance(step, int) else 0


def _damaged(where: str, problem: str, folder: str | None = None) -> FoundRun:
    return FoundRun(where, "damaged", {}, problem, folder)


def _read(path: str, parse: Parse = fileio.parse_json) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - making a Path is slower than reading
        return fileio.parse_json_object(file.read(), parse)
