"""The status of a run, from its folder alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command import read_files
from recording_listeners import Stopped, stop_after

from onepass.base import fileio
from onepass.runs.execute import run_job
from onepass.runs.folder import RunFolder
from onepass.runs.spec import Job
from onepass.runs.status import finished_result, set_aside_if_damaged, status_of

JOB = Job("er", "synthetic", batch=60, device="cpu")


def test_the_status_goes_from_to_run_to_to_resume_to_finished(tmp_path: Path) -> None:
    folder = RunFolder.of(JOB, tmp_path)
    assert status_of(folder) == ("to run", "")
    with pytest.raises(Stopped):
        run_job(JOB, tmp_path, checkpoint=2, listeners=[stop_after(5)])
    assert status_of(folder) == ("to resume", "")
    assert finished_result(folder, JOB) is None
    with fileio.locked_file(folder.path / ".lock", wait=False):
        assert status_of(folder) == ("being run", "")
    result = run_job(JOB, tmp_path, resume=True)
    assert status_of(folder) == ("finished", "")
    assert finished_result(folder, JOB) == result
    assert finished_result(folder, replace(JOB, seed=1)) is None, "the folder holds another run"


def test_a_damaged_folder_is_renamed_once(tmp_path: Path) -> None:
    folder = RunFolder.of(JOB, tmp_path)
    run_job(JOB, tmp_path)
    assert set_aside_if_damaged(folder) is None
    (folder.path / "events.jsonl").write_text("")
    status, problem = status_of(folder)
    assert status == "damaged" and str(folder.events_file) in problem
    before = read_files(folder.path)
    moved = set_aside_if_damaged(folder)
    assert moved is not None
    reason, aside = moved
    assert (reason, aside.name) == (problem, f"{folder.path.name}.damaged-1")
    assert read_files(aside) == before
    assert set_aside_if_damaged(folder) is None
