"""Several jobs at once: the same bits, whatever happens to some or all of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from command import Done, command, events, onepass, timeless, untouched, values_of
from fake_workers import use_fake_workers
from recording_listeners import ActAfter, Stopped, stop_after
from worker_processes import is_alive, worker_pids

from onepass import executors
from onepass.base.errors import (
    CheckpointError,
    DataError,
    InputError,
    MissingEntryError,
    OnepassError,
    RunError,
    TooLargeError,
    TrainingError,
    UnknownNameError,
    WriteError,
)
from onepass.evaluation.callbacks import Forwarder, Listener, Progress
from onepass.executors import RunOptions, execute_all
from onepass.executors.processes import worker
from onepass.executors.processes.pool import Processes
from onepass.executors.processes.ram import RamUse
from onepass.executors.retry import Failure
from onepass.learning.checkpoint import file
from onepass.runs.execute import run_job
from onepass.runs.resources import RunResources
from onepass.runs.result import Result
from onepass.runs.spec import Job

SAME = ("params_sha256", "state_sha256", "accuracy", "forgetting", "steps")
SHORT = Job("er", "synthetic", device="cpu")
LONG = Job("finetune", "synthetic", batch=1, device="cpu")
LONG_COMMAND = (
    *("run", "finetune", "--dataset", "synthetic", "--batch", 1),
    *("--device", "cpu", "--json", "--jobs", 2),
)
PATIENCE = 60


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends to have more cores; a small machine would have one run at a time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def start(*arguments: object, **options: Any) -> subprocess.Popen:
    """Starts a command in its own process group, as if the machine had two cores."""
    python, flag, code, *rest = command(*arguments)
    code = f"import os; os.sched_getaffinity = lambda pid: {{0, 1}}; {code}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([python, flag, code, *rest], start_new_session=True, **pipes, **options)


def end(child: subprocess.Popen) -> Done:
    out, err = child.communicate(timeout=PATIENCE)
    return Done(child.returncode, out, err)


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts commands, and kills what is left of them afterwards."""
    children: list[subprocess.Popen] = []

    def begin(*arguments: object, **options: Any) -> subprocess.Popen:
        children.append(start(*arguments, **options))
        return children[-1]

    yield begin
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def eventually(holds: Callable[[], Any], seconds: float = PATIENCE) -> bool:
    last = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > last:
            return False
        time.sleep(0.01)
    return True


def seeds(job: Job, count: int) -> list[Job]:
    return [replace(job, seed=seed) for seed in range(count)]


def facts(results: Sequence[Result | dict[str, Any]]) -> dict[Any, list[Any]]:
    return {
        tuple(values_of(record, ("method", "seed"))): values_of(record, SAME) for record in results
    }


def finished(out: Path, jobs: list[Job]) -> list[bool]:
    return [(out / job.folder_name / "result.json").exists() for job in jobs]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """The results of three seeds of the long job, run one after another in this process."""
    out = tmp_path_factory.mktemp("undisturbed")
    return [run_job(job, out) for job in seeds(LONG, 3)]


# ---- the same bits


@pytest.mark.slow
def test_two_runs_at_once_give_the_same_bits_as_one_after_another(
    tmp_path: Path, begin: Callable[..., subprocess.Popen]
) -> None:
    """The command prints one JSON object for each run and nothing else. Workers make the probe."""
    arguments = ("run", "finetune", "er", "--dataset", "synthetic", "--batch", 30, "--seeds", 2)
    arguments = (*arguments, "--device", "cpu", "--probe", "balance")
    child = begin(*arguments, "--json", "--jobs", 2, "--out", tmp_path / "two")
    alone = onepass(*arguments, "--json", "--jobs", 1, "--out", tmp_path / "one")
    together = end(child)
    assert (alone.status, together.status) == (0, 0), together.err
    assert len(together.records) == 4
    assert facts(together.records) == facts(alone.records)
    assert [list(record) for record in together.records] == [
        list(record) for record in alone.records
    ]
    for record in together.records:
        folder = Path(record["out"])
        assert folder.parent == tmp_path / "two"
        probed = [tmp_path / number / folder.name / "balance.jsonl" for number in ("one", "two")]
        assert probed[0].read_bytes() == probed[1].read_bytes() != b""


# ---- some fail


def test_a_run_that_diverges_does_not_stop_the_others_and_all_report_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = seeds(SHORT, 3)
    with pytest.raises(Stopped):
        run_job(jobs[1], tmp_path, checkpoint=5, listeners=[stop_after(15)])
    saved = tmp_path / jobs[1].folder_name / "checkpoint.pt"
    content = file.read_checkpoint(saved)
    content["state"]["model"]["head.weight"] *= float("nan")
    file.write_checkpoint(saved, content)

    messages: list[tuple[int, Progress]] = []
    real = executors.execute_all

    def spy(jobs: Any, how: RunOptions, executor: Any, watch: executors.Watch, **more: Any) -> Any:
        def both(index: int, now: Progress) -> None:
            messages.append((index, now))
            watch(index, now)

        assert executor.at_once == 2
        return real(jobs, how, executor, both, **more)

    monkeypatch.setattr(executors, "execute_all", spy)
    arguments = (
        "run",
        "er",
        "--preset",
        "common",
        "--dataset",
        "synthetic",
        "--seeds",
        3,
        "--device",
        "cpu",
        "--resume",
    )
    done = onepass(*arguments, "--jobs", 2, "--json", "--out", tmp_path)
    assert done.status == 1
    assert "loss of 'er' is nan" in done.error
    assert sorted(record["seed"] for record in done.records) == [0, 2]
    assert finished(tmp_path, jobs) == [True, False, True]
    assert {now.steps for _, now in messages} == {60}
    first = {index: min(n.step for i, n in messages if i == index) for index, _ in messages}
    assert first == {0: 0, 1: 15, 2: 0}
    assert max(now.step for index, now in messages if index == 0) > 0


def attempt(how: RunOptions) -> tuple[str, Failure]:
    return worker.attempt(SHORT, how, Forwarder(lambda now: None), RunResources())


def refused(job: Job, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "notes.txt").touch()


def blocked(job: Job, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.touch()


def unlockable(job: Job, folder: Path) -> None:
    """`onepass run` without --jobs reports the same error: Is a directory."""
    (folder / ".lock").mkdir(parents=True)


@pytest.mark.parametrize("hinder", [refused, blocked, unlockable])
def test_a_worker_marks_errors_that_the_user_can_correct(
    hinder: Callable[[Job, Path], None], tmp_path: Path
) -> None:
    hinder(SHORT, tmp_path / SHORT.folder_name)
    word, failure = attempt(RunOptions(tmp_path, resume=True))
    assert (word, failure.kind) == ("failed", "input"), failure.why
    assert SHORT.folder_name in failure.why


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (DataError("no file of images"), DataError),
        (CheckpointError("of another method"), CheckpointError),
        (MissingEntryError("no steps"), MissingEntryError),
        (UnknownNameError("method", "gsaa", ["gsa"]), UnknownNameError),
        (WriteError("the disk is full"), WriteError),
        (FileNotFoundError("no such file"), RunError),
        (type("Mine", (InputError,), {})("of a plugin"), InputError),
        (MemoryError("too much"), TooLargeError),
    ],
)
def test_an_error_comes_back_from_a_worker_as_it_was_raised_there(
    problem: Exception, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of other libraries come back as our own with the same meaning."""

    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(RunOptions, "run", fail)
    use_fake_workers(monkeypatch, lambda job, gpu: (*attempt(RunOptions(tmp_path)), RamUse()))
    with pytest.raises(OnepassError) as raised:
        list(execute_all([SHORT], RunOptions(tmp_path), Processes(1)))
    assert (type(raised.value), str(raised.value)) == (kind, str(problem))


def test_a_bug_before_the_log_exists_is_sent_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(RunOptions, "run", fail)
    word, failure = attempt(RunOptions(tmp_path))
    assert (word, failure.kind) == ("failed", "bug")
    assert "Traceback" in failure.why and "ZeroDivisionError: no" in failure.why


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_resumes_and_ends_with_the_same_bits(
    tmp_path: Path, begin: Callable[..., subprocess.Popen], undisturbed: list[Result]
) -> None:
    """Even without --resume. The jobs that the killed worker would have run next run too."""
    jobs = seeds(LONG, 3)
    child = begin(*LONG_COMMAND, "--seeds", 3, "--checkpoint", 9, "--out", tmp_path)
    saved = [tmp_path / job.folder_name / "checkpoint.pt" for job in jobs[:2]]
    assert eventually(lambda: all(path.exists() for path in saved))
    os.kill(worker_pids(child.pid)[0], signal.SIGKILL)
    done = end(child)
    assert done.status == 0, done.err
    assert "killed" in done.err and "tried once more" in done.err
    assert facts(done.records) == facts(undisturbed)
    logs = [(tmp_path / job.folder_name / "log.txt").read_text() for job in jobs]
    (disturbed,) = [log for log in logs if "killed" in log]
    assert "resumed after step" in disturbed and "finished" in disturbed


@pytest.mark.slow  # the same is tested with fake workers, in `test_admission.py`
def test_a_run_that_is_killed_twice_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    jobs, kills, failures = seeds(LONG, 2), [], []

    def kill(index: int, now: Progress) -> None:
        if index == 0 and now.step > 10:
            # the worker may be gone already if it had reported more steps
            for pid in worker_pids(os.getpid()):
                os.kill(pid, signal.SIGKILL)
                kills.append(now.step)

    ended = execute_all(
        jobs, RunOptions(tmp_path), Processes(1), kill, failed=lambda *what: failures.append(what)
    )
    assert next(ended)[0] == 1
    with pytest.raises(TrainingError, match="killed") as raised:
        next(ended)
    assert jobs[0].folder_name in str(raised.value) and "--resume" in str(raised.value)
    assert failures == [(0, raised.value)]
    assert len(kills) >= 2
    assert worker_pids(os.getpid()) == []


@dataclass(frozen=True)
class Troubled(RunOptions):
    """Makes runs fail in a worker after four steps, with the error of their seed, so many times."""

    errors: dict[int, tuple[Exception, int]] = field(default_factory=dict)

    def run(self, job: Job, listener: Listener, resources: RunResources) -> Result:
        problem, times = self.errors.get(job.seed, (None, 0))
        tries_file = self.out / f"{job.seed}.txt"
        tries = len(tries_file.read_text()) if tries_file.exists() else 0
        tries_file.write_text("x" * (tries + 1))

        def fail() -> None:
            if tries < times:
                raise problem

        resume, listeners = self.resume, [listener, ActAfter(4, fail)]
        return run_job(job, self.out, resume=resume, checkpoint=1, listeners=listeners)


@pytest.mark.slow  # `test_serial.py` tests retries; the messages of workers are tested above
def test_only_errors_that_may_not_recur_are_retried_and_a_bug_names_its_log(
    tmp_path: Path,
) -> None:
    jobs = seeds(replace(SHORT, batch=60), 5)
    errors = {
        0: (ZeroDivisionError("passes"), 1),
        1: (ZeroDivisionError("stays"), 9),
        2: (RunError("yours"), 9),
        3: (TrainingError("diverged"), 9),
        4: (TooLargeError("no room"), 9),
    }
    failures: dict[int, Exception] = {}
    how = Troubled(tmp_path, errors=errors)
    ended = execute_all(jobs, how, Processes(1), failed=failures.__setitem__)
    assert next(ended)[0] == 0
    with pytest.raises(TrainingError):
        next(ended)
    kinds = {index: type(problem) for index, problem in failures.items()}
    assert kinds == {1: TrainingError, 2: RunError, 3: TrainingError, 4: TooLargeError}
    tries = [len((tmp_path / f"{seed}.txt").read_text()) for seed in range(5)]
    assert tries == [2, 2, 1, 1, 1]
    log = tmp_path / jobs[1].folder_name / "log.txt"
    assert "ZeroDivisionError: stays" in str(failures[1]) and str(log) in str(failures[1])
    assert log.read_text().count("Traceback") == 2


def test_fail_fast_leaves_no_worker_behind(tmp_path: Path) -> None:
    jobs = [replace(SHORT, batch=60), replace(LONG, seed=1)]
    how = Troubled(tmp_path, errors={0: (RunError("yours"), 9)})
    with pytest.raises(RunError, match="yours"):
        list(execute_all(jobs, how, Processes(2), fail_fast=True))
    assert worker_pids(os.getpid()) == []
    assert finished(tmp_path, jobs) == [False, False]


# ---- all are stopped


@pytest.mark.slow
def test_when_the_parent_is_killed_the_workers_end_and_all_runs_can_resume(
    tmp_path: Path, begin: Callable[..., subprocess.Popen], undisturbed: list[Result]
) -> None:
    """A finished run is left alone, and a folder that blocks one run does not stop the others."""
    jobs = seeds(LONG, 4)
    child = begin(*LONG_COMMAND, "--seeds", 2, "--checkpoint", 1, "--out", tmp_path)
    saved = [tmp_path / job.folder_name / "checkpoint.pt" for job in jobs[:2]]
    assert eventually(lambda: all(path.exists() for path in saved))
    at_work = worker_pids(child.pid)
    assert len(at_work) >= 2
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert eventually(lambda: not any(is_alive(pid) for pid in at_work), 10)
    assert not all(finished(tmp_path, jobs[:2]))
    broken = [file.read_checkpoint(path)["tick"]["step"] for path in saved]
    assert min(broken) > 0

    shutil.copytree(undisturbed[2].out, tmp_path / jobs[2].folder_name)
    refused(jobs[3], tmp_path / jobs[3].folder_name)
    with untouched(tmp_path / jobs[2].folder_name), untouched(tmp_path / jobs[3].folder_name):
        done = onepass(*LONG_COMMAND, "--seeds", 4, "--resume", "--out", tmp_path)
    assert done.status == 2
    assert jobs[3].folder_name in done.error and "notes.txt" in done.error
    assert facts(done.records) == facts(undisturbed)
    for result in undisturbed:
        resumed = tmp_path / Path(result.out).name
        assert timeless(events(resumed)) == timeless(events(Path(result.out)))


@pytest.mark.slow  # the test above covers how workers end with their parent
def test_an_interrupt_of_the_parent_alone_ends_the_workers_too(
    tmp_path: Path, begin: Callable[..., subprocess.Popen]
) -> None:
    """`kill -INT` and supervisors send it so."""
    jobs = seeds(LONG, 2)
    child = begin(*LONG_COMMAND, "--seeds", 2, "--checkpoint", 1, "--out", tmp_path)
    saved = [tmp_path / job.folder_name / "checkpoint.pt" for job in jobs]
    assert eventually(lambda: all(path.exists() for path in saved))
    at_work = worker_pids(child.pid)
    child.send_signal(signal.SIGINT)
    done = end(child)
    assert done.status == 130
    assert "interrupted" in done.error
    assert done.out == ""
    assert not all(finished(tmp_path, jobs))
    assert eventually(lambda: not any(is_alive(pid) for pid in at_work), 10)
    assert all(file.read_checkpoint(path)["tick"]["step"] > 0 for path in saved)


def test_an_interrupt_from_the_keyboard_while_workers_are_starting_is_one_line(
    tmp_path: Path, begin: Callable[..., subprocess.Popen]
) -> None:
    child = begin(*LONG_COMMAND, "--seeds", 2, "--out", tmp_path)
    assert eventually(lambda: len(worker_pids(child.pid)) > 1)
    time.sleep(0.3)
    at_work = worker_pids(child.pid)
    os.killpg(child.pid, signal.SIGINT)
    done = end(child)
    assert done.status == 130
    assert "interrupted" in done.error
    assert done.out == ""
    assert eventually(lambda: not any(is_alive(pid) for pid in at_work), 10)
