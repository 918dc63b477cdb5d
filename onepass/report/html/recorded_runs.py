"""Reads all runs for a report: their results, and what their folders recorded on the way.

A damaged run is listed with its problem and does not affect the others.
"""

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
    """A run, its result if it has finished, and the points and probe lines of its folder."""

    found: FoundRun
    result: Result | None

    @cached_property
    def notes(self) -> list[str]:
        """Sentences about files of the run that cannot be read."""
        return [problem for _, problem in (self._points, self._balance) if problem]

    @property
    def points(self) -> list[Point]:
        """All evaluation points of a finished run. Empty if the run has not finished, if it is
        known only by a line, or if its events.jsonl is damaged or incomplete."""
        return self._points[0]

    @property
    def balance(self) -> list[dict[str, Any]]:
        """The lines of the balance probe at the ends of tasks; empty without the probe."""
        return [line for line in self._balance[0] if line.get("ended", True)]

    @property
    def class_names(self) -> list[str]:
        names = self.found.description.get("class_names")
        return list(map(str, names)) if isinstance(names, list) else []

    @property
    def tasks(self) -> list[list[int]]:
        """The class numbers of each task; empty if the folder does not record them."""
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
            complete = folder.has_all_points(self.result)
            problem = "events.jsonl lacks points of the run"
            return (folder.points(), "") if complete else ([], problem)
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
    """Returns all runs that meet every condition, and how many foreign lines each file has. Raises
    a RunError if no run does.

    Run folders come before lines of results files, because they hold more. Foreign lines are those
    of searches and benchmarks.
    """
    found = folders_first(find_runs(*paths, parse=fileio.parse_json))
    matching = matching_runs([run for run in found if not run.foreign], where)
    if not matching:
        condition = " that matches --where" if where else ""
        raise RunError(f"there is no run{condition} in {', '.join(map(str, paths))}")
    return [_recorded(run) for run in matching], count_foreign_lines(found)


def _recorded(run: FoundRun) -> RecordedRun:
    """Returns the run with its result. If the result cannot be read, the run is marked damaged."""
    if run.state != "finished":
        return RecordedRun(run, None)
    try:
        return RecordedRun(run, run.result())
    except RunError as problem:
        *_, reason = str(problem).rpartition(" is damaged: ")
        return RecordedRun(replace(run, state="damaged", values={}, problem=reason), None)


def finished_results(runs: Sequence[RecordedRun]) -> list[Result]:
    return [run.result for run in runs if run.result is not None]
