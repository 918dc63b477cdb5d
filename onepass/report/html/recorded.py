"""Every run that lies somewhere, as far as a report goes: what came out, and what was recorded on
the way. What is damaged is told, and spoils nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from onepass.base import fileio
from onepass.base.errors import RunError
from onepass.evaluation.scoring import Point
from onepass.runs import lines
from onepass.runs.folder import DAMAGED_NAME, RunFolder
from onepass.runs.query import Entry, chosen, find, of_no_run
from onepass.runs.result import Result

BALANCE = "balance"


@dataclass(frozen=True)
class Recorded:
    """A run: its entry in the list of all, its result once it has one, and what its folder holds
    besides. `notes` are sentences on what of that cannot be read."""

    entry: Entry
    result: Result | None

    @cached_property
    def notes(self) -> list[str]:
        return [problem for _, problem in (self._points, self._balance) if problem]

    @property
    def points(self) -> list[Point]:
        """All of a finished run's points, or none."""
        return self._points[0]

    @property
    def balance(self) -> list[dict[str, Any]]:
        """What the probe of that name said at the end of each task; nothing of a run without it."""
        return [line for line in self._balance[0] if line.get("ended", True)]

    @property
    def class_names(self) -> list[str]:
        names = self.entry.description.get("class_names")
        return list(map(str, names)) if isinstance(names, list) else []

    @property
    def tasks(self) -> list[list[int]]:
        """The classes of each task, by their numbers, if the folder tells."""
        stream = self.entry.description.get("stream")
        groups = stream.get("classes") if isinstance(stream, dict) else None
        if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
            return []
        known = all(type(label) is int and label >= 0 for group in groups for label in group)
        return groups if known else []

    @cached_property
    def _points(self) -> tuple[list[Point], str]:
        if self.result is None or self.entry.folder is None:
            return [], ""
        folder = RunFolder(Path(self.entry.folder))
        try:
            whole = folder.has_all_points(self.result)
            return (folder.points(), "") if whole else ([], "events.jsonl lacks points of the run")
        except (RunError, OSError):
            return [], "events.jsonl is damaged"

    @cached_property
    def _balance(self) -> tuple[list[dict[str, Any]], str]:
        if self.entry.folder is None:
            return [], ""
        try:
            return RunFolder(Path(self.entry.folder)).said_by(BALANCE) or [], ""
        except RunError:
            return [], f"{BALANCE}.jsonl is damaged"


def recorded(*paths: Path, where: Sequence[str] = ()) -> tuple[list[Recorded], dict[Path, int]]:
    """All runs at or below folders, and in files of lines, also of such that lie in a folder, that
    meet every condition. Runs' own folders come first, since they have more to show. Lines of
    anything else, such as a search, are passed over: how many, by their files."""
    of_lines = dict.fromkeys(file for path in paths for file in lines.files_at(path))
    others = {file: of_no_run(file) for file in of_lines}
    foreign = set[str]().union(*others.values())
    found = sorted(find(*paths, parse=fileio.parsed), key=lambda entry: entry.folder is None)
    such = chosen(found, where, None)
    runs = [_recorded(entry) for entry in such if entry.where not in foreign]
    if not runs:
        word = "such run" if where else "run"
        raise RunError(f"there is no {word} in {', '.join(map(str, paths))}")
    return runs, {file: len(places) for file, places in others.items() if places}


def _recorded(entry: Entry) -> Recorded:
    if entry.folder is not None and DAMAGED_NAME in Path(entry.folder).name:
        return Recorded(
            replace(entry, state="damaged", problem="it was set aside as damaged"), None
        )
    if entry.state != "finished":
        return Recorded(entry, None)
    content = {**lines.LACKING, **entry.values, "out": entry.where}
    try:
        return Recorded(entry, Result.read(content, Path(entry.where), out=entry.where))
    except RunError as problem:
        told = str(problem).removeprefix(f"{entry.where} is ").removeprefix("damaged: ")
        return Recorded(Entry(entry.where, "damaged", {}, told, entry.folder), None)


def results(runs: Sequence[Recorded]) -> list[Result]:
    return [run.result for run in runs if run.result is not None]
