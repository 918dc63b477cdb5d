"""Several jobs at once: the same bits, whatever happens to one of them or to all."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import Done, command, events, onepass, timeless, untouched
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass import files, sweep
from onepass.errors import RunError, TrainingError
from onepass.evaluate import Tick
from onepass.job import Job, execute

SAME = ("params_sha256", "state_sha256", "accuracy", "forgetting", "steps")
SHORT = Job("er", "synthetic", device="cpu")
LONG = Job("finetune", "synthetic", batch=1, device="cpu")
LONG_COMMAND = (
    *("run", "finetune", "--dataset", "synthetic", "--batch", 1),
    *("--device", "cpu", "--json", "--jobs", 2),
)
MPS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
PATIENCE = 60


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or there would be one run at a time on a small machine."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def start(*arguments: object, **options: Any) -> subprocess.Popen:
    """A command of its own, in a group of processes of its own, where there are two cores."""
    python, flag, code, *rest = command(*arguments)
    code = f"import os; os.cpu_count = lambda: 2; {code}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([python, flag, code, *rest], start_new_session=True, **pipes, **options)


def end(child: subprocess.Popen) -> Done:
    out, err = child.communicate(timeout=PATIENCE)
    return Done(child.returncode, out, err)


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts commands of which nothing is left afterwards."""
    children: list[subprocess.Popen] = []

    def begin(*arguments: object, **options: Any) -> subprocess.Popen:
        children.append(start(*arguments, **options))
        return children[-1]

    yield begin
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def stat(pid: int | str) -> list[str]:
    """State and parent of a process; nothing once it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return []


def alive(pid: int) -> bool:
    return bool(stat(pid)) and stat(pid)[0] not in "ZX"


def workers(parent: int) -> list[int]:
    """The processes that a command has started for its jobs."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [pid for pid in pids if stat(pid)[1:] == [str(parent)] and alive(pid)]


def eventually(holds: Callable[[], Any], seconds: float = PATIENCE) -> bool:
    last = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > last:
            return False
        time.sleep(0.01)
    return True


def seeds(job: Job, count: int) -> list[Job]:
    return [replace(job, seed=seed) for seed in range(count)]


def facts(results: list[dict[str, Any]]) -> dict[tuple[str, int], list[Any]]:
    return {(one["method"], one["seed"]): [one[key] for key in SAME] for one in results}


def finished(out: Path, jobs: list[Job]) -> list[bool]:
    return [(out / job.folder_name / "result.json").exists() for job in jobs]


class Stopped(Exception):
    """What stands in for a kill in this process."""


def break_off(job: Job, out: Path, step: int) -> None:
    def watch(tick: Tick, _: int) -> None:
        if tick.step == step:
            raise Stopped

    with pytest.raises(Stopped):
        execute(job, out, checkpoint=5, watch=watch)


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control program of the multi-process service that only writes down what it is told."""
    folder, log = tmp_path / "bin", tmp_path / "told"
    folder.mkdir()
    program = folder / "nvidia-cuda-mps-control"
    words = f'echo "$@ $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY" >> {log}'
    program.write_text(f'#!/bin/sh\n{words}\n[ "$1" = -d ] || cat >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in MPS:
        monkeypatch.delenv(name, raising=False)
    return log


# ---- the same bits


def test_two_at_once_give_the_bits_of_one_at_a_time(
    tmp_path: Path, begin: Callable[..., subprocess.Popen], control: Path
) -> None:
    """And print one JSON object for each run and nothing else, and start no service on a CPU."""
    asked = ("run", "finetune", "er", "--dataset", "synthetic", "--seeds", 2, "--device", "cpu")
    child = begin(*asked, "--json", "--jobs", 2, "--out", tmp_path / "two")
    alone = onepass(*asked, "--json", "--jobs", 1, "--out", tmp_path / "one")
    together = end(child)
    assert (alone.status, together.status) == (0, 0), together.err
    assert len(together.records) == 4
    assert facts(together.records) == facts(alone.records)
    assert [list(one) for one in together.records] == [list(one) for one in alone.records]
    for record in together.records:
        assert Path(record["out"]).parent == tmp_path / "two"
    assert not control.exists()


# ---- some fail


def test_a_run_that_diverges_does_not_stop_the_others_and_all_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = seeds(SHORT, 3)
    break_off(jobs[1], tmp_path, 15)
    saved = tmp_path / jobs[1].folder_name / "checkpoint.pt"
    content = files.read_checkpoint(saved)
    content["state"]["model"]["head.weight"] *= float("nan")
    files.write_checkpoint(saved, content)

    told: list[tuple[int, int, int]] = []
    real = sweep.execute_all

    def spy(*arguments: Any, watch: sweep.Watch, **options: Any) -> Any:
        def both(index: int, tick: Tick, steps: int) -> None:
            told.append((index, tick.step, steps))
            watch(index, tick, steps)

        assert options["at_once"] == 2
        return real(*arguments, watch=both, **options)

    monkeypatch.setattr(sweep, "execute_all", spy)
    asked = ("run", "er", "--dataset", "synthetic", "--seeds", 3, "--device", "cpu", "--resume")
    done = onepass(*asked, "--jobs", 2, "--json", "--out", tmp_path)
    assert done.status == 1
    assert "loss of 'er' is nan" in done.error
    assert sorted(one["seed"] for one in done.records) == [0, 2]
    assert finished(tmp_path, jobs) == [True, False, True]
    assert {index for index, _, _ in told} == {0, 1, 2}
    assert {steps for _, _, steps in told} == {60}
    assert {index: min(s for i, s, _ in told if i == index) for index in range(3)} == {
        0: 0,
        1: 15,
        2: 0,
    }
    assert max(step for index, step, _ in told if index == 0) > 0


def test_one_at_a_time_a_run_that_fails_does_not_stop_the_others_either(tmp_path: Path) -> None:
    jobs = seeds(SHORT, 2)
    (tmp_path / jobs[0].folder_name).mkdir()
    (tmp_path / jobs[0].folder_name / "notes.txt").touch()
    ended = []
    with pytest.raises(RunError, match="something else"):
        for index, _ in sweep.execute_all(jobs, tmp_path, at_once=1, resume=True):
            ended.append(index)
    assert ended == [1]
    assert finished(tmp_path, jobs) == [False, True]


def test_one_at_a_time_every_step_is_watched(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def watch(index: int, tick: Tick, steps: int) -> None:
        told.append((index, tick.step))

    ended = list(sweep.execute_all(seeds(SHORT, 2), tmp_path, at_once=1, watch=watch))
    assert [index for index, _ in ended] == [0, 1]
    assert told == [(index, step) for index in (0, 1) for step in range(61)]


def refused(job: Job, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "notes.txt").touch()


def blocked(job: Job, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.touch()


def unlockable(job: Job, folder: Path) -> None:
    """Where `onepass run` without --jobs says: Is a directory."""
    (folder / ".lock").mkdir(parents=True)


@pytest.mark.parametrize("hinder", [refused, blocked, unlockable])
def test_what_the_user_can_mend_is_told_as_such_by_a_worker(
    hinder: Callable[[Job, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_NEWS", queue.Queue())
    hinder(SHORT, tmp_path / SHORT.folder_name)
    kind, message = sweep._work(0, SHORT, tmp_path, True, None)
    assert kind == "input", message
    assert SHORT.folder_name in message


def test_a_bug_travels_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(sweep, "execute", fail)
    kind, message = sweep._work(0, SHORT, tmp_path, True, None)
    assert kind == "bug"
    assert "Traceback" in message and "ZeroDivisionError: no" in message


@pytest.mark.parametrize(
    ("kind", "error"), [("input", RunError), ("training", TrainingError), ("bug", RuntimeError)]
)
def test_the_first_failure_is_raised_when_all_have_ended(kind: str, error: type) -> None:
    pending: dict[Future, int] = {}
    for index, answer in enumerate([(kind, "first"), ("result", {"n": 1}), ("result", {"n": 2})]):
        future: Future = Future()
        future.set_result(answer)
        pending[future] = index
    found = sweep._collect(pending, queue.Queue(), lambda index, tick, steps: None)
    assert sorted([next(found)[0], next(found)[0]]) == [1, 2]
    with pytest.raises(error, match="first"):
        next(found)


def test_a_process_that_was_killed_is_told_with_what_to_do() -> None:
    future: Future = Future()
    future.set_exception(BrokenProcessPool())
    kind, message = sweep._answer(future)
    assert kind == "training"
    assert "killed" in message and "--resume" in message


# ---- all are stopped


def test_when_the_parent_is_killed_the_workers_end_and_all_can_be_resumed(
    tmp_path: Path, begin: Callable[..., subprocess.Popen]
) -> None:
    """Beside a finished run, which is left alone, and a folder in the way, which stops no other."""
    jobs = seeds(LONG, 4)
    out = tmp_path / "broken"
    child = begin(*LONG_COMMAND, "--seeds", 2, "--checkpoint", 1, "--out", out)
    saved = [out / job.folder_name / "checkpoint.pt" for job in jobs[:2]]
    assert eventually(lambda: all(path.exists() for path in saved))
    at_work = workers(child.pid)
    assert len(at_work) >= 2
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert eventually(lambda: not any(alive(pid) for pid in at_work), 10)
    assert not all(finished(out, jobs[:2]))
    broken = [files.read_checkpoint(path)["tick"]["step"] for path in saved]
    assert min(broken) > 0

    whole = [execute(job, tmp_path / "whole") for job in jobs[:2]]
    whole.append(execute(jobs[2], out))
    refused(jobs[3], out / jobs[3].folder_name)
    with untouched(out / jobs[2].folder_name), untouched(out / jobs[3].folder_name):
        done = onepass(*LONG_COMMAND, "--seeds", 4, "--resume", "--out", out)
    assert done.status == 2
    assert jobs[3].folder_name in done.error and "notes.txt" in done.error
    assert facts(done.records) == facts(whole)
    for one in whole:
        resumed = out / Path(one["out"]).name
        assert timeless(events(resumed)) == timeless(events(Path(one["out"])))


def test_an_interrupt_of_the_parent_alone_ends_the_workers_too(
    tmp_path: Path, begin: Callable[..., subprocess.Popen]
) -> None:
    """As `kill -INT` and supervisors send it."""
    jobs = seeds(LONG, 2)
    child = begin(*LONG_COMMAND, "--seeds", 2, "--checkpoint", 1, "--out", tmp_path)
    saved = [tmp_path / job.folder_name / "checkpoint.pt" for job in jobs]
    assert eventually(lambda: all(path.exists() for path in saved))
    at_work = workers(child.pid)
    child.send_signal(signal.SIGINT)
    done = end(child)
    assert done.status == 130
    assert "interrupted" in done.error
    assert done.out == ""
    assert not all(finished(tmp_path, jobs))
    assert eventually(lambda: not any(alive(pid) for pid in at_work), 10)
    assert all(files.read_checkpoint(path)["tick"]["step"] > 0 for path in saved)


def test_an_interrupt_from_the_keyboard_while_workers_are_starting_is_one_line(
    tmp_path: Path, begin: Callable[..., subprocess.Popen]
) -> None:
    child = begin(*LONG_COMMAND, "--seeds", 2, "--out", tmp_path)
    assert eventually(lambda: len(workers(child.pid)) > 1)
    time.sleep(0.3)
    at_work = workers(child.pid)
    os.killpg(child.pid, signal.SIGINT)
    done = end(child)
    assert done.status == 130
    assert "interrupted" in done.error
    assert done.out == ""
    assert eventually(lambda: not any(alive(pid) for pid in at_work), 10)


# ---- how many


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.none() | st.integers(1, 40),
    st.integers(1, 20),
    st.integers(1, 20),
    st.none() | st.integers(1, 64),
    st.sampled_from(["cpu", "cuda"]),
)
def test_there_are_never_more_at_once_than_cores_for_their_threads_nor_than_jobs(
    wanted: int | None, jobs: int, threads: int, cores: int | None, device: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: cores)
        some = [Job("er", seed=seed, threads=threads, device=device) for seed in range(jobs)]
        found = sweep.fitting(wanted, some)
    room = max(1, (cores or 1) // threads)
    most = 8 if device == "cuda" else room
    assert found == min(most if wanted is None else wanted, room, jobs)
    assert 1 <= found <= jobs


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", "two", "1e3"])
def test_a_number_of_runs_that_cannot_be_is_refused(text: str, tmp_path: Path) -> None:
    asked = ("run", "finetune", "--dataset", "synthetic", "--device", "cpu", "--out", tmp_path)
    done = onepass(*asked, "--jobs", text)
    assert done.status == 2
    assert "--jobs" in done.error and f"{text!r}" in done.error
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "expected"), [("auto", 2), ("2", 2), ("9", 2), ("1", 1)])
def test_the_option_says_how_many(
    text: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def nothing(jobs: list[Job], out: Path, *, at_once: int, **_: object) -> Iterator[Any]:
        seen.append(at_once)
        return iter(())

    monkeypatch.setattr(sweep, "execute_all", nothing)
    asked = ("run", "finetune", "--dataset", "synthetic", "--device", "cpu", "--seeds", 3)
    done = onepass(*asked, "--jobs", text, "--json", "--out", tmp_path)
    assert done.status == 0, done.err
    assert seen == [expected]


def test_engine_and_precision_are_settings_by_another_name(tmp_path: Path) -> None:
    asked = ("run", "finetune", "--dataset", "synthetic", "--device", "cpu", "--json", "--out")
    short = onepass(*asked, tmp_path / "a", "--precision", "bf16", "--engine", "eager").record
    pairs = ("--set", "precision=bf16", "--set", "engine=eager")
    long = onepass(*asked, tmp_path / "b", *pairs).record
    plain = onepass(*asked, tmp_path / "c", "--precision", "fp32", "--engine", "auto").record
    assert [short[key] for key in SAME] == [long[key] for key in SAME]
    assert Path(short["out"]).name == Path(long["out"]).name != Path(plain["out"]).name
    assert Path(plain["out"]).name == "finetune-synthetic-m100-s0"
    assert plain["params_sha256"] != short["params_sha256"]
    for name, value in (("precision", "bf16"), ("engine", "eager")):
        done = onepass(*asked, tmp_path / "d", f"--{name}", value, "--set", f"{name}={value}")
        assert done.status == 2
        assert f"--{name}" in done.error
    done = onepass(*asked, tmp_path / "d", "--engine", "graph")
    assert (done.status, "GPU" in done.error) == (2, True)
    assert not (tmp_path / "d").exists()


# ---- sharing a card


@pytest.mark.parametrize("fails", [False, True], ids=["well", "badly"])
def test_a_service_is_started_for_a_gpu_and_ended_however_the_runs_end(
    fails: bool, control: Path
) -> None:
    places = []
    try:
        with sweep.sharing(replace(SHORT, device="cuda")):
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


def test_no_service_is_started_on_a_cpu(control: Path) -> None:
    with sweep.sharing(SHORT):
        assert not any(name in os.environ for name in MPS)
    assert not control.exists()


def test_a_service_of_the_users_own_is_used_and_left_alone(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MPS[0], "/somewhere")
    with sweep.sharing(replace(SHORT, device="cuda")):
        assert os.environ[MPS[0]] == "/somewhere"
        assert MPS[1] not in os.environ
    assert os.environ[MPS[0]] == "/somewhere"
    assert not control.exists()


def test_where_the_users_logs_go_is_the_users_again_afterwards(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MPS[1], "/logs")
    with sweep.sharing(replace(SHORT, device="cuda")):
        pass
    assert os.environ.get(MPS[1]) == "/logs"
    assert MPS[0] not in os.environ


def test_a_service_that_does_not_start_is_not_ended_either(control: Path) -> None:
    program = control.parent / "bin" / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\necho "$@" >> {control}\nexit 1\n')
    with sweep.sharing(replace(SHORT, device="cuda")):
        pass
    assert control.read_text() == "-d\n"
    assert not any(name in os.environ for name in MPS)


def test_without_the_control_program_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with sweep.sharing(replace(SHORT, device="cuda")):
        assert not any(name in os.environ for name in MPS)
