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
from onepass.evaluation.points import Point
from onepass.runs.find import FoundRun, find_runs
from onepass.runs.folder import RunFolder
from onepass.runs.query import count_foreign_lines, folders_first, matching_runs
from onepass.runs.result import Result

BALANCE = "balance"


@dataclass(frozen=True)
class RecordedRun:
    """A run as it was found, its result once it has one, and what its folder holds
    besides. `notes` are sentences on what of that cannot be read."""

    found: FoundRun
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
        names = self.found.description.get("class_names")
        return list(map(str, names)) if isinstance(names, list) else []

    @property
    def tasks(self) -> list[list[int]]:
        """The classes of each task, by their numbers, if the folder tells."""
        stream = self.found.description.get("stream")
        groups = stream.get("classes") if isinstance(stream, dict) else None
        if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
            return []
        known = all(type(label) is int and label >= 0 for group in groups for label in group)
        return groups if known else []

    @cached_property
    def _points(self) -> tuple[list[Point], str]:
        if self.result is None or self.found.folder is None:
            return [], ""
        folder = RunFolder(Path(self.found.folder))
        try:
            whole = folder.has_all_points(self.result)
            return (folder.points(), "") if whole else ([], "events.jsonl lacks points of the run")
        except (RunError, OSError):
            return [], "events.jsonl is damaged"

    @cached_property
    def _balance(self) -> tuple[list[dict[str, Any]], str]:
        if self.found.folder is None:
            return [], ""
        try:
            return RunFolder(Path(self.found.folder)).probe_lines(BALANCE) or [], ""
        except RunError:
            return [], f"{BALANCE}.jsonl is damaged"


def read_runs(*paths: Path, where: Sequence[str] = ()) -> tuple[list[RecordedRun], dict[Path, int]]:
    """Returns all runs that meet every condition, runs' own folders first, since they have more to
    show; and how many lines of each file were passed over, since they are of something else."""
    found = folders_first(find_runs(*paths, parse=fileio.parse_json))
    matching = matching_runs([run for run in found if not run.foreign], where)
    if not matching:
        condition = " that matches --where" if where else ""
        raise RunError(f"there is no run{condition} in {', '.join(map(str, paths))}")
    return [_recorded(run) for run in matching], count_foreign_lines(found)


def _recorded(run: FoundRun) -> RecordedRun:
    if run.state != "finished":
        return RecordedRun(run, None)
    try:
        return RecordedRun(run, run.result())
    except RunError as problem:
        *_, told = str(problem).rpartition(" is damaged: ")
        return RecordedRun(replace(run, state="damaged", values={}, problem=told), None)


def finished_results(runs: Sequence[RecordedRun]) -> list[Result]:
    return [run.result for run in runs if run.result is not None]
