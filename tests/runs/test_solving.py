"""Runs of methods whose solve is slow: how often they solve is counted, said beforehand, and part
of the identity; large sums are written at the end only, unless somebody asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recording_listeners import Stopped, stop_after

import onepass
from onepass.base.news import Line, heard_by
from onepass.evaluation import schedule
from onepass.functional.closed_form import Linear, Moments
from onepass.runs import recorder
from onepass.runs.execute import run_job
from onepass.runs.folder import RunFolder
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job

WIDE = 100
JOB = Job("ranpac", "digits", device="cpu", batch=30, settings={"width": f"{WIDE + 1}"})
STEPS, ENDS = 50, [10, 20, 30, 40, 50]


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "WIDE", WIDE)
    monkeypatch.setattr(schedule, "LONG_SOLVES", 0)
    monkeypatch.setattr(schedule, "LARGE_SUMS", 0)


def width(number: int, **options: object) -> Job:
    return replace(JOB, settings={"width": str(number)}, **options)  # type: ignore[arg-type]


def told(job: Job, out: Path, **options: object) -> list[str]:
    """Runs a job; returns what it says once, beforehand."""
    lines: list[Line] = []
    with heard_by(lines.append):
        run_job(job, out, **options)  # type: ignore[arg-type]
    return [line.text for line in lines if line.kind == "note"]


def scored(job: Job, out: Path) -> list[int]:
    return [point.step for point in RunFolder.of(job, out).points()]


# ---- how often they are scored


def test_more_features_than_a_limit_are_scored_at_task_ends_only(
    everything_is_large: None, tmp_path: Path
) -> None:
    resources = RunResources()
    wide, narrow = (resources.with_fingerprint(width(WIDE + more)) for more in (1, 0))
    assert (wide.known_every, narrow.known_every) == (STEPS, None)
    run_job(wide, tmp_path)
    run_job(narrow, tmp_path)
    steps = scored(wide, tmp_path)
    assert len(steps) == 5
    assert set(steps) < set(scored(narrow, tmp_path))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (Job("ncm", "synthetic", device="cpu"), None),  # no products of features, nothing to solve
        (Job("slda", "synthetic", device="cpu"), 60),  # 432 inputs
        (Job("slda", "digits", device="cpu"), None),  # 64 inputs
        (Job("ranpac", "digits", device="cpu"), 146),  # 256 random features by default
        (Job("er", "synthetic", device="cpu"), None),
    ],
    ids=lambda value: f"{value.method} on {value.dataset}" if isinstance(value, Job) else "",
)
def test_features_are_counted_for_the_method_and_the_data(
    job: Job, expected: int | None, everything_is_large: None
) -> None:
    assert RunResources().with_fingerprint(job).known_every == expected


def test_the_default_is_part_of_the_identity_as_a_choice_is(everything_is_large: None) -> None:
    known = RunResources().with_fingerprint
    assert known(JOB).identity == known(replace(JOB, every=STEPS)).identity
    assert known(JOB).identity != known(replace(JOB, every=25)).identity
    assert known(JOB).folder_name == known(replace(JOB, validation=0.0)).folder_name


def test_raw_cifar_images_are_scored_at_task_ends() -> None:
    """3072 inputs have 10 000 random features by default."""
    images = onepass.load("synthetic", shape=(3, 32, 32), train_per_class=2, test_per_class=2)
    stream = onepass.ClassIncremental(images, tasks=5, batch=2)
    assert schedule.default_every(stream, onepass.RanPAC()) == len(stream)
    assert schedule.default_every(stream, onepass.RanPAC(width=4096)) is None
    assert schedule.default_every(stream, onepass.Ridge()) is None
    cost = schedule.solving_cost(onepass.RanPAC(), stream, len(stream), prequential=False)
    assert cost == "solves 5 times for 10,000 features, from 800.0 MB of sums"


# ---- what it says beforehand


@pytest.mark.parametrize(
    "options", [{}, {"every": 7}, {"every": 25}, {"prequential": True}], ids=str
)
def test_it_solves_as_often_as_it_says(
    options: dict[str, object],
    everything_is_large: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solve, solved = onepass.RanPAC.solve, []

    def counting(self: onepass.RanPAC, moments: Moments) -> Linear:
        solved.append(moments)
        return solve(self, moments)

    monkeypatch.setattr(onepass.RanPAC, "solve", counting)
    said, checkpoint = told(replace(JOB, **options), tmp_path)  # type: ignore[arg-type]
    ends_only = " (5 times at task ends only: --every 50)" if len(solved) > 5 else ""
    assert said == (f"solves {len(solved)} times for 101 features, from 81.6 kB of sums{ends_only}")
    assert checkpoint.startswith("a checkpoint has 81.6 kB: one at the end only (--checkpoint N")


def test_a_short_run_says_nothing(tmp_path: Path) -> None:
    assert told(JOB, tmp_path) == []


def test_nothing_is_said_of_checkpoints_that_somebody_chose(
    everything_is_large: None, tmp_path: Path
) -> None:
    assert len(told(JOB, tmp_path / "some", checkpoint=20)) == 1
    assert len(told(JOB, tmp_path / "none", checkpoint=None)) == 1


# ---- checkpoints


@pytest.mark.parametrize(
    ("large", "checkpoint", "written"),
    [(0, "auto", False), (0, 20, True), (2**26, "auto", True)],
    ids=["large", "large but asked for", "small"],
)
def test_large_sums_are_written_at_the_end_or_when_asked(
    large: int,
    checkpoint: int | str,
    written: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "LARGE_SUMS", large)
    monkeypatch.setattr(recorder, "SECONDS_BETWEEN", 0)
    whole = run_job(JOB, tmp_path / "whole")
    with pytest.raises(Stopped):
        run_job(JOB, tmp_path, checkpoint=checkpoint, listeners=[stop_after(29)])  # type: ignore[arg-type]
    assert RunFolder.of(JOB, tmp_path).checkpoint_file.exists() == written
    result = run_job(JOB, tmp_path, resume=True)
    assert RunFolder.of(JOB, tmp_path).checkpoint_file.exists()
    assert result.state_sha256 == whole.state_sha256
    assert result.accuracy_matrix == whole.accuracy_matrix
