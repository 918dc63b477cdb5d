"""Reads from a run folder how far its run is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from reprlib import Repr
from typing import Any, Literal

from onepass.base.errors import CheckpointError, RunError
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result
from onepass.runs.spec import Fingerprint, Job

RunStatus = Literal["finished", "to resume", "to run", "being run", "damaged"]
SHORT = Repr()
SHORT.maxdict, SHORT.maxstring, SHORT.maxother = 20, 200, 200
FILES = ("result.json", "events.jsonl", "checkpoint.pt")


def status_of(folder: RunFolder) -> tuple[RunStatus, str]:
    """Returns the status of a run, and what is wrong with its folder if it is damaged."""
    return ("being run", "") if folder.is_being_run() else _status(folder)


def set_aside_if_damaged(folder: RunFolder) -> tuple[str, Path] | None:
    """Renames a damaged folder, and returns what was wrong and its new path. Returns None if the
    folder is not damaged: another process may have been faster."""
    try:
        with folder.locked():
            status, problem = _status(folder)
            return (problem, folder.move_aside()) if status == "damaged" else None
    except RunError:
        if status_of(folder)[0] == "damaged":
            raise
        return None


def finished_result(folder: RunFolder, job: Job) -> Result | None:
    """Returns the result of a job's run. Returns None if the run has not finished, or if the folder
    is damaged or holds another run: running the job raises the error."""
    try:
        described, result = folder.description(), folder.result()
        if described is not None and result is not None:
            expect_same_run(folder, described, job)
            return result
    except RunError:
        pass
    return None


def expect_same_run(folder: RunFolder, found: dict[str, Any], job: Job) -> None:
    """Raises a RunError if a folder, whose run.json is `found`, holds another run than the job's.
    A job without a fingerprint is not compared by its data."""
    if "identity" not in found:
        raise RunError(
            f"{folder.path} was run by an earlier version, which did not record the run's "
            "identity: it cannot be resumed; --out puts the new run elsewhere"
        )
    recorded = dict(found["job"])
    if job.fingerprint is None:
        job = replace(job, fingerprint=Fingerprint(str(recorded.get("data_sha256")), 0))
    wanted = job.identity_fields
    if recorded.get("data_sha256") != wanted["data_sha256"]:
        raise RunError(f"{folder.path} was begun on other data than {job.dataset!r} is now")
    names = [name for name in {**wanted, **recorded} if recorded.get(name) != wanted.get(name)]
    if names:
        differences = [
            f"{name} {abbreviated(recorded.get(name))}, not {abbreviated(wanted.get(name))}"
            for name in names
        ]
        raise RunError(f"{folder.path} holds a run with other settings: {', '.join(differences)}")


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
    """Returns what is wrong with the files of a folder together, each being valid alone; an empty
    text if nothing is."""
    if not described:
        others = any((folder.path / name).exists() for name in FILES)
        return f"{folder.run_file} is missing" if others else ""
    if result is not None and not folder.has_all_points(result):
        return f"{folder.events_file} lacks points of its run"
    return ""


def abbreviated(value: Any) -> str:
    """Returns the repr of a value, shortened so that it fits into an error."""
    return SHORT.repr(value)
