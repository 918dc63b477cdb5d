"""A run that is stopped at any moment and resumed ends with the bits of one that never stopped."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from command import (
    command,
    events,
    execute_until_write,
    file_names,
    onepass,
    process,
    timeless,
    untouched,
    values_of,
)
from recording_listeners import ActAfter, RecordingListener, Stopped, stop_after

from onepass import InputError, Learner
from onepass.base.errors import CheckpointError, RunError, WriteError
from onepass.learning import registry
from onepass.learning.checkpoint import file as checkpoint
from onepass.learning.network_learner import NetworkLearner
from onepass.runs.execute import run_job
from onepass.runs.result import Result
from onepass.runs.spec import Job

SAME = ("params_sha256", "state_sha256", "accuracy", "forgetting", "accuracy_matrix")
LONG = Job("gsa", "digits", memory=100, batch=4, device="cpu")
LONG_COMMAND = (
    *(
        "run",
        "gsa",
        "--preset",
        "common",
        "--dataset",
        "digits",
        "--memory",
        100,
        "--batch",
        4,
        "--device",
        "cpu",
    ),
    *("--checkpoint", 5, "--json", "--out"),
)


def step_of(folder: Path) -> int:
    """Returns the step of the last checkpoint."""
    path = folder / "checkpoint.pt"
    return checkpoint.read_checkpoint(path)["tick"]["step"] if path.exists() else 0


@pytest.fixture(scope="module")
def preloaded_context() -> ForkServerContext:
    """A context whose processes have all modules imported and nothing computed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["onepass.cli", "sklearn.datasets"])
    return context


# ---- twenty kills


Child = ForkServerProcess | subprocess.Popen


def running(child: Child) -> bool:
    return child.poll() is None if isinstance(child, subprocess.Popen) else child.is_alive()


def kill(child: Child) -> bool:
    """Kills the child; returns whether it was still running."""
    child.kill()
    if isinstance(child, subprocess.Popen):
        return child.wait() == -signal.SIGKILL
    child.join()
    return child.exitcode == -signal.SIGKILL


def wait_for_checkpoints(folder: Path, count: int, child: Child) -> None:
    """Waits until the child has written so many checkpoints, or has ended."""

    def mark() -> int | None:
        path = folder / "checkpoint.pt"
        return path.stat().st_mtime_ns if path.exists() else None

    seen = {mark()}
    while len(seen) <= count and running(child):
        seen.add(mark())
        time.sleep(0.001)


def start(kind: str, out: Path, preloaded_context: ForkServerContext) -> Child:
    if kind == "command":
        line = command(*LONG_COMMAND, out, "--resume")
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    options = {"resume": True, "checkpoint": 5}
    child = preloaded_context.Process(target=run_job, args=(LONG, out), kwargs=options)
    child.start()
    return child


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_no_bit(
    tmp_path: Path, preloaded_context: ForkServerContext
) -> None:
    whole = onepass(*LONG_COMMAND, tmp_path / "whole").record
    out, folder = tmp_path / "broken", tmp_path / "broken" / LONG.folder_name
    chance = random.Random(7)
    unfinished, steps = 0, [0]
    for index in range(20):
        early = index % 5 == 3  # perhaps before the first step
        checkpoints = 0 if early else chance.randint(1, 5)
        child = start("command" if index in (9, 17) else "function", out, preloaded_context)
        wait_for_checkpoints(folder, checkpoints, child)
        time.sleep(chance.uniform(0, 0.3 if early else 0.03))
        unfinished += kill(child) and not (folder / "result.json").exists()
        steps.append(step_of(folder))
    assert unfinished >= 18, steps
    assert steps == sorted(steps)
    assert len(set(steps)) > 15, steps

    done = process(*LONG_COMMAND, out, "--resume")
    assert done.status == 0, done.err
    for key in ("params_sha256", "state_sha256", "accuracy", "forgetting", "steps"):
        assert done.record[key] == whole[key]
    assert timeless(events(folder)) == timeless(events(Path(whole["out"])))
    assert file_names(folder) == file_names(Path(whole["out"]))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The result of an undisturbed run of 60 steps."""
    return run_job(Job("er", "synthetic", device="cpu"), tmp_path_factory.mktemp("short"))


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        pytest.param(1, 0, marks=pytest.mark.slow),
        pytest.param(2, 0, marks=pytest.mark.slow),
        (3, 0),
        pytest.param(4, 20, marks=pytest.mark.slow),
        pytest.param(5, 40, marks=pytest.mark.slow),
        (6, 60),
    ],
    ids=["run.json", "events.jsonl", "checkpoint 1", "checkpoint 2", "checkpoint 3", "result.json"],
)
def test_a_kill_while_a_file_is_being_written_leaves_what_was_there_before(
    moment: int, step: int, tmp_path: Path, preloaded_context: ForkServerContext, short: Result
) -> None:
    job = Job("er", "synthetic", device="cpu")
    child = preloaded_context.Process(target=execute_until_write, args=(job, tmp_path, moment))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    folder = tmp_path / job.folder_name
    assert list(folder.glob(".*.partial"))
    assert not (folder / "result.json").exists()
    assert step_of(folder) == step
    result = run_job(job, tmp_path, resume=True, checkpoint=20)
    assert values_of(result, SAME) == values_of(short, SAME)
    assert timeless(events(folder)) == timeless(events(Path(short.out)))


def test_an_interrupted_command_says_so_and_can_resume(tmp_path: Path) -> None:
    line = command(*LONG_COMMAND, tmp_path)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(line, text=True, **pipes)
    folder = tmp_path / LONG.folder_name
    wait_for_checkpoints(folder, 2, child)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert "interrupted" in line
    assert out == ""
    assert step_of(folder) > 0
    assert not (folder / "result.json").exists()


# ---- stops in this process


def takes(kind: type[Learner], **settings: object) -> bool:
    """Returns whether a method has these settings; some have no head to freeze."""
    try:
        kind(**settings)
    except InputError:
        return False
    return True


def every_method() -> Iterator[Any]:
    """`make test` takes a few of them: the contract stops and resumes every learner there, and this
    test stops runs."""
    for info in registry.methods():
        marks = () if info.key in ("er", "gsa", "scr", "ranpac") else pytest.mark.slow
        yield pytest.param(info, id=info.key, marks=marks)


@pytest.mark.parametrize("info", list(every_method()))
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="default"),
        pytest.param(
            {"head": "frozen", "mirror": "true", "optimizer": "adamw"},
            id="frozen",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_method_that_stops_inside_a_task_resumes_bit_for_bit(
    info: registry.MethodInfo, settings: dict[str, str], tmp_path: Path
) -> None:
    trains = issubclass(info.learner, NetworkLearner)
    few = {
        name: str(min(value, 2)) for name, value in info.learner.traits.quick.items()
    }  # only the bits matter
    if not trains:
        settings = {}
    elif not takes(info.learner, head=settings.get("head", "trained")):
        settings = {name: value for name, value in settings.items() if name != "head"}
    settings = {**settings, **few}
    prequential = not info.learner.traits.trains_to_score
    chosen = {"memory": 40, "seed": 3, "settings": settings, "prequential": prequential}
    job = Job(info.key, "synthetic", device="cpu", **chosen)
    whole = run_job(job, tmp_path / "whole", checkpoint=10)
    for step in (17, 45):  # resumes from 10 and from 40, both inside a task
        with pytest.raises(Stopped):
            run_job(
                job, tmp_path / "broken", resume=True, checkpoint=10, listeners=[stop_after(step)]
            )
    result = run_job(job, tmp_path / "broken", resume=True, checkpoint=10)

    for key in (*SAME, "prequential_accuracy", "anytime_accuracy", "class_accuracy"):
        assert getattr(result, key) == getattr(whole, key), key
    first, second = Path(whole.out), Path(result.out)
    assert timeless(events(first)) == timeless(events(second))
    saved = [
        checkpoint.read_checkpoint(folder / "checkpoint.pt")["state"] for folder in (first, second)
    ]
    assert_equal(*saved)
    own = {"model", "optimizer", "parts", "generators", "new"} if trains else {"sums"}
    assert {"book", *own} <= set(saved[0])


@pytest.mark.parametrize("stream", ["long-tail:rho=10", "blurry:n=50,m=10"])
def test_other_streams_resume_bit_for_bit(stream: str, tmp_path: Path) -> None:
    job = Job("gsa", "synthetic", device="cpu", stream=stream, class_order="shuffled")
    whole = run_job(job, tmp_path / "whole")
    with pytest.raises(Stopped):
        run_job(job, tmp_path / "broken", checkpoint=7, listeners=[stop_after(15)])
    result = run_job(job, tmp_path / "broken", resume=True, checkpoint=7)
    assert values_of(result, SAME) == values_of(whole, SAME)


def assert_equal(first: Any, second: Any) -> None:
    """Asserts that two trees of values are equal bit for bit."""
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert list(first) == list(second)
        for key in first:
            assert_equal(first[key], second[key])
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
    else:
        assert first == second


@pytest.mark.parametrize("step", [10, 12, 24, 59, 60], ids=lambda step: f"after {step}")
def test_a_stop_next_to_a_boundary_or_the_end_changes_nothing(
    step: int, tmp_path: Path, short: Result
) -> None:
    job = Job("er", "synthetic", device="cpu")
    with pytest.raises(Stopped):
        run_job(job, tmp_path, checkpoint=step, listeners=[stop_after(step)])
    assert step_of(tmp_path / job.folder_name) == step
    result = run_job(job, tmp_path, resume=True)
    assert values_of(result, SAME) == values_of(short, SAME)
    assert timeless(events(Path(result.out))) == timeless(events(Path(short.out)))


def test_seconds_continue_after_a_resumption(tmp_path: Path) -> None:
    job = Job("er", "synthetic", device="cpu")
    with pytest.raises(Stopped):
        run_job(job, tmp_path, checkpoint=30, listeners=[stop_after(30)])
    folder = tmp_path / job.folder_name
    before = checkpoint.read_checkpoint(folder / "checkpoint.pt")["tick"]["seconds"]
    result = run_job(job, tmp_path, resume=True)
    seconds = [event["seconds"] for event in events(folder)]
    assert seconds == sorted(seconds)
    assert result.seconds > before > 0


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace", "torch.save"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one_usable(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: Result
) -> None:
    job = Job("er", "synthetic", device="cpu")
    folder = tmp_path / job.folder_name

    def fail_from_now_on() -> None:
        monkeypatch.setattr(failing, fail)

    def fail(*_: object) -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        run_job(job, tmp_path, checkpoint=20, listeners=[ActAfter(30, fail_from_now_on)])
    monkeypatch.undo()
    assert step_of(folder) == 20
    assert not list(folder.glob(".*.partial"))
    result = run_job(job, tmp_path, resume=True)
    assert values_of(result, SAME) == values_of(short, SAME)


def test_files_that_a_kill_left_half_written_are_harmless(tmp_path: Path, short: Result) -> None:
    job = Job("er", "synthetic", device="cpu")
    with pytest.raises(Stopped):
        run_job(job, tmp_path, checkpoint=20, listeners=[stop_after(25)])
    folder = tmp_path / job.folder_name
    (folder / ".checkpoint.pt.123.partial").write_bytes(b"half")
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"step": 26, "ta')
    result = run_job(job, tmp_path, resume=True)
    assert values_of(result, SAME) == values_of(short, SAME)
    assert timeless(events(folder)) == timeless(events(Path(short.out)))
    assert not list(folder.glob(".*.partial"))


def test_without_checkpoints_a_broken_run_starts_again(tmp_path: Path, short: Result) -> None:
    job = Job("er", "synthetic", device="cpu")
    with pytest.raises(Stopped):
        run_job(job, tmp_path, checkpoint=None, listeners=[stop_after(25)])
    following = RecordingListener()
    result = run_job(job, tmp_path, resume=True, checkpoint=None, listeners=[following])
    assert following.calls[0] == ("started", 0)
    assert following.steps == list(range(1, 61))
    assert values_of(result, SAME) == values_of(short, SAME)
    assert timeless(events(Path(result.out))) == timeless(events(Path(short.out)))


def test_a_run_in_progress_is_left_alone(tmp_path: Path, short: Result) -> None:
    job, others = Job("er", "synthetic", device="cpu"), []

    def try_it_too() -> None:
        with untouched(tmp_path):
            arguments = (
                "run",
                "er",
                "--preset",
                "common",
                "--dataset",
                "synthetic",
                "--device",
                "cpu",
            )
            others.append(onepass(*arguments, "--out", tmp_path, "--resume"))

    result = run_job(job, tmp_path, checkpoint=20, listeners=[ActAfter(25, try_it_too)])
    (other,) = others
    assert other.status == 2
    assert "another process" in other.error
    assert values_of(result, SAME) == values_of(short, SAME)


def test_an_existing_run_is_refused_without_resume(tmp_path: Path) -> None:
    job = Job("er", "synthetic", device="cpu", batch=60)
    run_job(job, tmp_path)
    with untouched(tmp_path), pytest.raises(RunError, match="--resume"):
        run_job(job, tmp_path)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    job = Job("er", "synthetic", device="cpu", batch=60)
    first = run_job(job, tmp_path)
    again = run_job(job, tmp_path, resume=True, listeners=[stop_after(1)])
    assert again == first


# ---- changes to the folder by others


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(
    tmp_path: Path, short: Result
) -> None:
    job, precious = Job("er", "synthetic", device="cpu"), tmp_path / "precious"
    with pytest.raises(Stopped):
        run_job(job, tmp_path, checkpoint=20, listeners=[stop_after(25)])
    precious.write_text("precious")
    lock = tmp_path / job.folder_name / ".lock"
    lock.unlink()
    lock.symlink_to(precious)
    with untouched(tmp_path), pytest.raises(RunError, match=rf"{lock} .*link"):
        run_job(job, tmp_path, resume=True)
    lock.unlink()
    assert values_of(run_job(job, tmp_path, resume=True), SAME) == values_of(short, SAME)


def test_events_are_not_written_through_a_link(tmp_path: Path, short: Result) -> None:
    job, precious = Job("er", "synthetic", device="cpu"), tmp_path / "precious"
    precious.write_text("precious")
    path = tmp_path / job.folder_name / "events.jsonl"

    def replace() -> None:
        path.rename(tmp_path / "aside")
        path.symlink_to(precious)

    with pytest.raises(WriteError, match=rf"{path} .*link"):
        run_job(job, tmp_path, checkpoint=20, listeners=[ActAfter(25, replace)])
    with untouched(tmp_path), pytest.raises(CheckpointError, match=f"^{path} "):
        run_job(job, tmp_path, resume=True)
    (tmp_path / "aside").replace(path)
    result = run_job(job, tmp_path, resume=True)
    assert precious.read_text() == "precious"
    assert values_of(result, SAME) == values_of(short, SAME)
    assert timeless(events(Path(result.out))) == timeless(events(Path(short.out)))


CHANGES = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_text(""),
    "halved": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "another run's": lambda path: path.write_text(path.read_text().replace("1", "2")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_result_does_not_depend_on_changes_to_events_jsonl(
    change: str, tmp_path: Path, short: Result
) -> None:
    """Before a stop or after it. The file is complete again at the end."""
    job = Job("er", "synthetic", device="cpu")
    path = tmp_path / job.folder_name / "events.jsonl"
    changes = [ActAfter(step, lambda: CHANGES[change](path)) for step in (15, 45)]
    with pytest.raises(Stopped):
        stop = stop_after(25)
        stop.key = "stop"
        run_job(job, tmp_path, checkpoint=20, listeners=[changes[0], stop])
    result = run_job(job, tmp_path, resume=True, listeners=[changes[1]])
    keys = (*SAME, "anytime_accuracy", "points")
    assert values_of(result, keys) == values_of(short, keys)
    assert timeless(events(path.parent)) == timeless(events(Path(short.out)))


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a run that was stopped after 25 of 60 steps, five after its checkpoint."""
    job = Job("er", "synthetic", device="cpu", probes=("balance",))
    with pytest.raises(Stopped):
        run_job(job, tmp_path, checkpoint=20, listeners=[stop_after(25)])
    return tmp_path / job.folder_name


@pytest.mark.parametrize("name", ["events", "balance"])
@pytest.mark.parametrize("change", CHANGES)
def test_lines_that_changed_since_the_checkpoint_keep_the_run_from_resuming(
    change: str, name: str, stopped: Path
) -> None:
    path = stopped / f"{name}.jsonl"
    CHANGES[change](path)
    job = Job("er", "synthetic", device="cpu", probes=("balance",))
    with untouched(stopped), pytest.raises(CheckpointError, match=f"^{path} does not begin with"):
        run_job(job, stopped.parent, resume=True)


def test_lines_written_after_the_checkpoint_are_cut_off_and_written_again(
    stopped: Path,
) -> None:
    files = checkpoint.read_checkpoint(stopped / "checkpoint.pt")["files"]
    files = {key: extent for key, extent in files.items() if extent["bytes"]}
    assert files.keys() == {"events", "balance"}
    seen = {}
    follow = ActAfter(21, lambda: seen.update({key: read(key) for key in files}))

    def read(key: str) -> bytes:
        return (stopped / f"{key}.jsonl").read_bytes()

    assert all(len(read(key)) > extent["bytes"] for key, extent in files.items())
    before = {key: read(key)[: extent["bytes"]] for key, extent in files.items()}
    job = Job("er", "synthetic", device="cpu", probes=("balance",))
    run_job(job, stopped.parent, resume=True, listeners=[follow])
    assert all(seen[key].startswith(before[key]) for key in files)
    steps = [[json.loads(line)["step"] for line in read(key).splitlines()] for key in files]
    assert all(found == sorted(set(found)) and found[-1] == 60 for found in steps)


def test_a_checkpoint_holds_no_lines_however_many_there_are(stopped: Path) -> None:
    content = (stopped / "checkpoint.pt").read_bytes()
    lines = (stopped / "events.jsonl").read_bytes().splitlines()
    assert lines and not any(line in content for line in lines)


def test_a_checkpoint_of_an_earlier_version_is_refused_and_says_so(stopped: Path) -> None:
    path = stopped / "checkpoint.pt"
    content = checkpoint.read_checkpoint(path)
    del content["files"]
    checkpoint.write_checkpoint(path, {**content, "lines": {"events": []}})
    job = Job("er", "synthetic", device="cpu", probes=("balance",))
    with untouched(stopped), pytest.raises(CheckpointError, match=f"^{path} .* earlier version"):
        run_job(job, stopped.parent, resume=True)
