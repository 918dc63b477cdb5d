"""How far the run of a folder is, by the files that are there."""

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
    """Returns how far a run is, and what is wrong with its folder if that is damaged."""
    return ("being run", "") if folder.is_being_run() else _status(folder)


def set_aside_if_damaged(folder: RunFolder) -> tuple[str, Path] | None:
    """Moves a damaged folder out of the way, whole, to a name that says so. Returns what was wrong
    and where it is now; None if it is damaged no longer: another process was here before."""
    try:
        with folder.locked():
            status, problem = _status(folder)
            return (problem, folder.move_aside()) if status == "damaged" else None
    except RunError:
        if status_of(folder)[0] == "damaged":
            raise
        return None


def finished_result(folder: RunFolder, job: Job) -> Result | None:
    """Returns the result of a job's run; None if that has not come to its end, or if the folder
    holds another run or is damaged, as whoever runs the job will say."""
    try:
        described, result = folder.description(), folder.result()
        if described is not None and result is not None:
            expect_same_run(folder, described, job)
            return result
    except RunError:
        pass
    return None


def expect_same_run(folder: RunFolder, found: dict[str, Any], job: Job) -> None:
    """Raises a RunError if a folder, described by `found`, holds another run than the job's. Data
    that are not known yet are not compared."""
    if "identity" not in found:
        raise RunError(
            f"{folder.path} was run by an earlier version, which did not record what a run is "
            "known by: it cannot be resumed; --out puts the new run elsewhere"
        )
    asked = dict(found["job"])
    if job.fingerprint is None:
        job = replace(job, fingerprint=Fingerprint(str(asked.get("data_sha256")), 0))
    wanted = job.identity_fields
    if asked.get("data_sha256") != wanted["data_sha256"]:
        raise RunError(f"{folder.path} was begun on other data than {job.dataset!r} is now")
    names = [name for name in {**wanted, **asked} if asked.get(name) != wanted.get(name)]
    if names:
        told = [
            f"{name} {abbreviated(asked.get(name))}, not {abbreviated(wanted.get(name))}"
            for name in names
        ]
        raise RunError(f"{folder.path} holds a run with other settings: {', '.join(told)}")


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


def abbreviated(value: Any) -> str:
    """Returns as much of a value as an error has room for."""
    return SHORT.repr(value)
