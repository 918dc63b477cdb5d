"""How far the run of a folder is, by the files that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from onepass.base.errors import CheckpointError, RunError
from onepass.runs.execute import compare
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result
from onepass.runs.spec import Job

RunStatus = Literal["finished", "to resume", "to run", "being run", "damaged"]
FILES = ("result.json", "events.jsonl", "checkpoint.pt")


def status_of(folder: RunFolder) -> tuple[RunStatus, str]:
    """Returns how far a run is, and what is wrong with its folder if that is damaged."""
    return ("being run", "") if folder.is_being_run() else _status(folder)


def set_aside(folder: RunFolder) -> tuple[str, Path] | None:
    """Moves a damaged folder out of the way, whole, to a name that says so. Returns what was wrong
    and where it is now; None if it is damaged no longer: another process was here before."""
    try:
        with folder.locked():
            status, problem = _status(folder)
            return (problem, folder.set_aside()) if status == "damaged" else None
    except RunError:
        if status_of(folder)[0] == "damaged":
            raise
        return None


def finished(folder: RunFolder, job: Job) -> Result | None:
    """Returns the result of a job's run; None if that has not come to its end, or if the folder
    holds another run or is damaged, as whoever runs the job will say."""
    try:
        described, result = folder.description(), folder.result()
        if described is not None and result is not None:
            compare(folder, described, job)
            return result
    except RunError:
        pass
    return None


def _status(folder: RunFolder) -> tuple[RunStatus, str]:
    try:
        described, result = folder.description(), folder.result()
        if problem := _damage(folder, described is not None, result):
            return "damaged", problem
        if result is not None:
            return "finished", ""
        return ("to run" if folder.load_checkpoint() is None else "to resume"), ""
    except (RunError, CheckpointError) as problem:
        return "damaged", str(problem)


def _damage(folder: RunFolder, described: bool, result: Result | None) -> str:
    """Returns what no file says alone; nothing if all is well."""
    if not described:
        left = any((folder.path / name).exists() for name in FILES)
        return f"{folder.run_file} is missing" if left else ""
    if result is not None and not folder.has_all_points(result):
        return f"{folder.events_file} lacks points of its run"
    return ""
