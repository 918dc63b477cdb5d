"""Reads the status of a run from its folder, compares the folder with a job, and sets a damaged
folder aside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from reprlib import Repr
from typing import Any, Literal

from onepass.base.errors import CheckpointError, RunError
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result
from onepass.runs.spec import Fingerprint, Job

# to resume: there is a checkpoint; to run: there is none, or not even a folder
RunStatus = Literal["finished", "to resume", "to run", "being run", "damaged"]
SHORT = Repr()
SHORT.maxdict, SHORT.maxstring, SHORT.maxother = 20, 200, 200
FILES = ("result.json", "events.jsonl", "checkpoint.pt")


def status_of(folder: RunFolder) -> tuple[RunStatus, str]:
    """Returns the status of a run, and the problem of its folder; "" if it is not damaged."""
    return ("being run", "") if folder.is_being_run() else _status(folder)


def set_aside_if_damaged(folder: RunFolder) -> tuple[str, Path] | None:
    """Renames a damaged folder, and returns its problem and its new path. Returns None if the
    folder is not damaged, because another process may have been faster. Raises a RunError if a
    damaged folder cannot be locked."""
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
    is damaged or holds another run. Running the job then raises the error."""
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
    If the job has no fingerprint, the data are not compared."""
    if "identity" not in found:
        raise RunError(
            f"{folder.path} was run by an earlier version, which did not record the run's "
            "identity, so it cannot be resumed; choose another --out"
        )
    recorded = dict(found["job"])
    if job.fingerprint is None:
        found_data = Fingerprint(str(recorded.get("data_sha256")), 0, recorded.get("every"))
        job = replace(job, fingerprint=found_data)
    wanted = job.identity_fields
    if recorded.get("data_sha256") != wanted["data_sha256"]:
        raise RunError(
            f"{folder.path} was begun on other data than {job.dataset!r} is now: "
            "choose another --out"
        )
    names = [name for name in {**wanted, **recorded} if recorded.get(name) != wanted.get(name)]
    if names:
        differences = [
            f"{name} {abbreviated(recorded.get(name))}, not {abbreviated(wanted.get(name))}"
            for name in names
        ]
        raise RunError(
            f"{folder.path} holds a run with other settings: {', '.join(differences)}; "
            "choose another --out, or the settings of that run"
        )


def _status(folder: RunFolder) -> tuple[RunStatus, str]:
    """Returns what `status_of` returns for a run that no process is running."""
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
    """Returns the problem of a folder whose files are each valid, but do not belong together; "" if
    there is none."""
    if not described:
        others = any((folder.path / name).exists() for name in FILES)
        return f"{folder.run_file} is missing" if others else ""
    if result is not None and not folder.has_all_points(result):
        return f"{folder.events_file} lacks points of its run"
    return ""


def abbreviated(value: Any) -> str:
    """Returns the repr of a value, shortened to fit into an error."""
    return SHORT.repr(value)
