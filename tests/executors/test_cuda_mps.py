"""CUDA MPS: a service is started for GPU runs, and a service of the user's stays undisturbed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from recording_listeners import Stopped

from onepass.executors.processes.cuda_mps import cuda_mps_service

MPS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the CUDA MPS control program that only logs its arguments and input."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    program = folder / "nvidia-cuda-mps-control"
    words = f'echo "$@ $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY" >> {log}'
    program.write_text(f'#!/bin/sh\n{words}\n[ "$1" = -d ] || cat >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in MPS:
        monkeypatch.delenv(name, raising=False)
    return log


@pytest.mark.parametrize("fails", [False, True], ids=["well", "badly"])
def test_a_service_is_started_for_a_gpu_and_ended_however_the_runs_end(
    fails: bool, control: Path
) -> None:
    places = []
    try:
        with cuda_mps_service("cuda"):
            places = [os.environ[name] for name in MPS]
            assert control.read_text() == f"-d {places[0]} {places[1]}\n"
            assert all(Path(place).is_dir() for place in places)
            if fails:
                raise Stopped
    except Stopped:
        assert fails
    began, last, quit_ = control.read_text().splitlines()
    assert began == f"-d {places[0]} {places[1]}"
    assert last.split() == places
    assert quit_ == "quit"
    assert not any(name in os.environ for name in MPS)
    assert not any(Path(place).exists() for place in places)


def test_the_service_sees_every_gpu_so_that_numbers_stay_valid(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = control.parent / "bin" / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\necho "sees ${{CUDA_VISIBLE_DEVICES-all}}" >> {control}\n')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    with cuda_mps_service("cuda"):
        assert control.read_text() == "sees all\n"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,2"


def test_no_service_is_started_on_a_cpu(control: Path) -> None:
    with cuda_mps_service("cpu"):
        assert not any(name in os.environ for name in MPS)
    assert not control.exists()


def test_a_service_that_the_user_started_is_used_and_left_running(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MPS[0], "/somewhere")
    with cuda_mps_service("cuda"):
        assert os.environ[MPS[0]] == "/somewhere"
        assert MPS[1] not in os.environ
    assert os.environ[MPS[0]] == "/somewhere"
    assert not control.exists()


def test_the_users_log_folder_is_restored_afterwards(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MPS[1], "/logs")
    with cuda_mps_service("cuda"):
        pass
    assert os.environ.get(MPS[1]) == "/logs"
    assert MPS[0] not in os.environ


def test_a_service_that_does_not_start_is_not_ended_either(control: Path) -> None:
    program = control.parent / "bin" / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\necho "$@" >> {control}\nexit 1\n')
    with cuda_mps_service("cuda"):
        pass
    assert control.read_text() == "-d\n"
    assert not any(name in os.environ for name in MPS)


def test_without_the_control_program_no_service_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with cuda_mps_service("cuda"):
        assert not any(name in os.environ for name in MPS)
