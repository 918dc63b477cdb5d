"""log.txt, which users read when a run has failed."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from command import onepass
from recording_listeners import ActAfter

from onepass.base import news
from onepass.base.errors import TrainingError
from onepass.runs.execute import run_job
from onepass.runs.folder import RunFolder
from onepass.runs.spec import Job

JOB = Job("er", "synthetic", batch=60, device="cpu")  # 10 steps
log = logging.getLogger("onepass")


def lines(out: Path) -> list[str]:
    """Returns the log without the times."""
    found = (out / JOB.folder_name / "log.txt").read_text().splitlines()
    return [line.split(" ", 1)[1] if line[:2] == "20" else line for line in found]


def failing(problem: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise problem

    return fail


def go(out: Path, action: Callable[[], object], **options: object) -> None:
    run_job(JOB, out, checkpoint=1, listeners=[ActAfter(4, action)], **options)


def test_the_log_has_the_start_warnings_traceback_and_resumption(
    tmp_path: Path,
) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        go(tmp_path, failing(ZeroDivisionError("a bug\x1b[31m")))
    assert str(tmp_path / JOB.folder_name / "log.txt") in raised.value.__notes__[0]
    first = lines(tmp_path)
    assert first[:2] == ["started", "failed: Traceback (most recent call last):"]
    assert first[-1] == r"ZeroDivisionError: a bug\x1b[31m"

    def warn() -> None:
        assert not log.handlers, "it would keep warnings from standard error"
        log.warning("of %s", "ours")

    before, filters = warnings.showwarning, list(log.filters)
    run_job(JOB, tmp_path, resume=True, listeners=[ActAfter(6, warn)])
    assert lines(tmp_path)[len(first) :] == [
        "resumed after step 4",
        "warning: of ours",
        "finished",
    ]
    assert warnings.showwarning is before
    assert log.filters == filters


def test_python_warnings_reach_the_log_and_still_standard_error(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        go(tmp_path, lambda: warnings.warn("look\nout", UserWarning, stacklevel=1))
    assert [str(warning.message) for warning in caught] == ["look\nout"]
    assert lines(tmp_path) == ["started", "warning: UserWarning: look", "out", "finished"]


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (TrainingError("it diverged"), "failed: it diverged"),
        (KeyboardInterrupt(), "stopped: KeyboardInterrupt"),
    ],
)
def test_an_expected_error_is_logged_without_a_traceback(
    problem: BaseException, line: str, tmp_path: Path
) -> None:
    with pytest.raises(type(problem)):
        go(tmp_path, failing(problem))
    assert lines(tmp_path) == ["started", line]


def test_a_log_that_cannot_be_written_does_not_stop_the_run(tmp_path: Path) -> None:
    """A link in its place is not followed either."""
    with pytest.raises(ZeroDivisionError):
        go(tmp_path, failing(ZeroDivisionError()))
    file, elsewhere = tmp_path / JOB.folder_name / "log.txt", tmp_path / "elsewhere"
    file.unlink()
    file.symlink_to(elsewhere)
    arguments = [
        "run",
        "er",
        "--preset",
        "common",
        "--dataset",
        "synthetic",
        "--batch",
        60,
        "--device",
        "cpu",
    ]
    assert onepass(*arguments, "--resume", "--out", tmp_path, "--json").status == 0
    assert not elsewhere.exists()


def test_a_folder_without_run_json_gets_no_log(tmp_path: Path) -> None:
    """A folder that holds only a log would be refused."""
    assert not RunFolder(tmp_path).add_to_log("killed")
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_goes_on_with_lines_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "PAUSE", 0.0)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, failing(KeyboardInterrupt()))
    run_job(JOB, tmp_path, resume=True)
    found = [re.sub(r"[\d.]+ (s left|%)", r"N \1", line) for line in lines(tmp_path)]
    told = [f"step {step} of 10, task {(step + 1) // 2}: N %, N s left" for step in range(1, 10)]
    stopped = ["stopped: KeyboardInterrupt", "resumed after step 4"]
    assert found == ["started", *told[:4], *stopped, *told[4:], "finished"]


def test_lines_are_in_the_log_once_even_if_the_logger_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(news, "PAUSE", 0.0)
    with caplog.at_level(logging.INFO, "onepass"):
        run_job(JOB, tmp_path)
    found = [line for line in lines(tmp_path) if "step" in line]
    assert len(found) == 9
    assert caplog.messages == found
