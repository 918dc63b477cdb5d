"""`onepass.sweep`, which does in Python what the command does."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command import untouched

import onepass
from onepass.base import fileio
from onepass.base.errors import OnepassError, WriteError
from onepass.evaluation.callbacks import Progress
from onepass.executors.base import Outcome
from onepass.executors.serial import Serial
from onepass.runs import lines, query
from onepass.runs.execute import run_job
from onepass.runs.spec import Job
from onepass.sweeps.run import SweepListener, SweptRun

SMALL: dict[str, Any] = {
    "defaults": {"dataset": "synthetic", "batch": 30, "methods": ["er", "finetune"]}
}
JOB = Job("er", "synthetic", batch=30, device="cpu")  # the first of them


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process, which is faster; tests of the command use worker processes."""
    monkeypatch.setattr("onepass.executors.choose_executor", lambda *_, **__: Serial())


def swept(out: Path, spec: Any = SMALL, **options: Any) -> list[SweptRun]:
    return onepass.sweep(spec, **{"out": out, "device": "cpu", **options})


class Following(SweepListener):
    """Records the states of all runs at the start, their progress, and their ends."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.steps: dict[int, int] = {}
        self.ends: list[tuple[int, str]] = []
        self.notes: list[str] = []

    def started(self, runs: Sequence[SweptRun]) -> None:
        self.states = [run.state for run in runs]

    def progressed(self, number: int, progress: Progress) -> None:
        self.steps[number] = progress.step

    def ended(self, number: int, run: SweptRun) -> None:
        self.ends.append((number, run.state))

    def noted(self, text: str) -> None:
        self.notes.append(text)


def test_every_run_comes_back_with_its_result_and_is_not_run_again(tmp_path: Path) -> None:
    runs = swept(tmp_path / "out")
    assert [run.job.method for run in runs] == ["er", "finetune"]
    assert runs[0].name == JOB.folder_name
    assert [run.state for run in runs] == ["finished", "finished"]
    for run in runs:
        assert run.result is not None
        assert run.result.state_sha256 == run_job(run.job, tmp_path / "alone").state_sha256
    with untouched(tmp_path / "out"):
        again = swept(tmp_path / "out")
    assert [run.state for run in again] == ["skipped", "skipped"]
    assert [run.result for run in again] == [run.result for run in runs]


def test_a_file_gives_the_runs_of_its_dictionary(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[defaults]\ndataset = "synthetic"\nbatch = 30\nmethods = ["er", "finetune"]\n')
    dry = [swept(tmp_path, spec, dry_run=True) for spec in (SMALL, file, str(file))]
    assert dry[0] == dry[1] == dry[2]


def test_a_dry_run_returns_the_status_and_expected_time_of_runs(tmp_path: Path) -> None:
    swept(tmp_path, {"defaults": {**SMALL["defaults"], "methods": "er"}})
    more = {"defaults": {**SMALL["defaults"], "seeds": 2}}
    with untouched(tmp_path):
        runs = swept(tmp_path, more, dry_run=True)
    assert [run.state for run in runs] == ["finished", "to run", "to run", "to run"]
    assert runs[0].expected_seconds is None and runs[0].result is not None
    assert all(run.expected_seconds for run in runs[1:])


def test_a_listener_follows_all_runs_by_their_numbers(tmp_path: Path) -> None:
    swept(tmp_path, {"defaults": {**SMALL["defaults"], "methods": "er"}})
    following = Following()
    swept(tmp_path, listener=following)
    assert following.states == ["skipped", "left"]
    assert following.steps == {1: 20}
    assert following.ends == [(1, "finished")]
    assert following.notes == []


@pytest.mark.parametrize("fast", [False, True])
def test_a_run_that_fails_is_returned_with_its_problem(fast: bool, tmp_path: Path) -> None:
    (tmp_path / JOB.folder_name).mkdir()
    (tmp_path / JOB.folder_name / "thesis.txt").touch()
    failed, other = swept(tmp_path, fail_fast=fast)
    assert (failed.state, failed.result) == ("failed", None)
    assert "thesis.txt" in failed.problem and JOB.folder_name in failed.problem
    assert other.state == ("left" if fast else "finished")


def test_notices_are_logged_without_a_listener(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (done, _) = swept(tmp_path)
    assert done.result is not None
    (Path(done.result.out) / "result.json").write_text("{")
    with caplog.at_level(logging.WARNING, "onepass"):
        again, _ = swept(tmp_path)
    assert again.state == "finished"
    assert ".damaged-1, and run again" in caplog.text


def test_a_result_is_appended_once_and_its_run_is_then_skipped(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    for state in ("finished", "skipped"):
        runs = onepass.sweep(SMALL, append=file, device="cpu")
        assert [run.state for run in runs] == [state, state]
        assert [run.seed for run in lines.read_results(file)] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def linked(file: Path) -> None:
    file.with_name("other").write_text("")
    file.symlink_to(file.with_name("other"))


def in_a_missing_folder(file: Path) -> None:
    file.parent.rmdir()


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (linked, "it is a link to another file"),
        (in_a_missing_folder, "No such file or directory"),
        (lambda file: file.write_text("remember the milk"), "its last line is not JSON"),
        (lambda file: file.write_text("") or file.chmod(0o400), "Permission denied"),
    ],
)
def test_a_file_that_cannot_grow_is_refused_before_the_first_run(
    prepare: Callable[[Path], object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path] = []
    monkeypatch.setattr("onepass.runs.execute.run_job", lambda job, out, **_: begun.append(out))
    opened = os.open

    def open_as_another_user(path: Path, flags: int, mode: int = 0o777) -> int:
        """Refuses what the mode forbids, also where the tests run as root."""
        if Path(path).exists() and flags & os.O_RDWR and not Path(path).stat().st_mode & 0o200:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", open_as_another_user)
    file = tmp_path / "folder" / "a.jsonl"
    file.parent.mkdir()
    prepare(file)
    with pytest.raises(WriteError, match=said):
        swept(tmp_path / "out", append=file)
    assert not begun and not (tmp_path / "out").exists()


def test_a_run_whose_line_cannot_be_added_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fileio, "_write_all", full)
    with pytest.raises(WriteError, match=r"No space left .* the finished run is kept in ") as told:
        onepass.sweep(SMALL, append=tmp_path / "a.jsonl", device="cpu")
    kept = Path(str(told.value).rpartition(" kept in ")[2])
    assert kept.is_relative_to(tmp_path)
    monkeypatch.undo()
    (result,) = query.find_results(kept)
    assert (result.method, result.seed) == ("er", 0)


def test_runs_that_do_not_fit_into_the_time_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Serial):
        def outcomes(self, *given: Any) -> Generator[Outcome, None, None]:
            for number, result in super().outcomes(*given):
                assert not isinstance(result, Exception)
                yield number, result.__class__(**{**vars(result), "seconds": 3600.0})

    monkeypatch.setattr("onepass.executors.choose_executor", lambda *_, **__: Slow())
    assert {run.state for run in swept(tmp_path, time_limit=60)} == {"finished", "left"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": 0}, "must be at least 1, not 0"),
        ({"jobs": "many"}, "jobs must be"),
        ({"checkpoint": 0}, "checkpoint must be at least 1"),
        ({"checkpoint": "often"}, "checkpoint must be"),
        ({"time_limit": 0}, "time_limit must be"),
        ({"append": "lines.txt"}, ".jsonl"),
        ({"dataset": "digits"}, "dataset of the sweep 'digits'"),
        ({"device": "gpu"}, "gpu"),
        ({"spec": {"defaults": {"methods": "er", "memroy": 1}}}, "key of the sweep"),
        ({"spec": {"defaults": {"methods": "era"}}}, "era"),
        ({"spec": "none.toml"}, "there is no file none.toml"),
    ],
)
def test_invalid_arguments_are_refused_and_nothing_runs(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # choose the executor as outside of tests
    with pytest.raises(OnepassError, match=message):
        swept(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
