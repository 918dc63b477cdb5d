"""Listeners: their hooks, the fate of one that fails, and their recorded lines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from command import file_names, timeless, values_of
from recording_listeners import RecordingListener, Stopped, stop_after

import onepass
from onepass import InputError, evaluate
from onepass.base.errors import WriteError
from onepass.evaluation.callbacks import Forwarder, Listener, progress
from onepass.evaluation.callbacks.audience import Audience
from onepass.learning.checkpoint import file
from onepass.runs.execute import run_job
from onepass.runs.folder import RunFolder
from onepass.runs.spec import Job

JOB = Job("er", "synthetic", batch=30, device="cpu", every=5)  # 20 steps, 5 tasks of 4
SAME = ("params_sha256", "state_sha256", "accuracy", "forgetting", "accuracy_matrix", "steps")
HOOKS = ("started", "stepped", "scored", "task_ended", "finished", "state_dict")


class Failing(Listener):
    """Raises in one of its hooks."""

    key = "failing"

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self.fail)

    def fail(self, *_: object) -> None:
        raise ZeroDivisionError("of all things")


class Counting(Listener):
    """Records its number of steps at every third; that number is its state."""

    key = "counting"

    def __init__(self) -> None:
        self.seen = torch.zeros(())

    def stepped(self, learner: object, step: object) -> None:
        self.seen += 1
        if self.seen % 3 == 0:
            self.say({"seen": int(self.seen)})

    def state_dict(self) -> dict:
        return {"seen": self.seen.clone()}

    def load_state_dict(self, state: dict) -> None:
        self.seen = state["seen"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> onepass.runs.result.Result:
    """The result of the run without listeners."""
    return run_job(JOB, tmp_path_factory.mktemp("plain"))


# ---- hooks


def expected(result: object) -> list[tuple[str, object]]:
    calls: list[tuple[str, object]] = [("started", 0)]
    for step in range(1, 21):
        calls.append(("stepped", step))
        if step % 5 == 0 or step % 4 == 0:
            calls.append(("scored", step))
        if step % 4 == 0:
            calls.append(("task ended", step // 4 - 1))
    return [*calls, ("finished", result)]


def test_a_run_calls_hooks_in_order(tmp_path: Path) -> None:
    recording = RecordingListener()
    run_job(JOB, tmp_path, listeners=[recording])
    assert recording.calls == expected(20)


def test_evaluate_calls_the_same_hooks_and_ends_without_a_result() -> None:
    recording = RecordingListener()
    stream = onepass.ClassIncremental(onepass.load("synthetic"), tasks=5, batch=30)
    for _ in evaluate(onepass.ER(memory=10), stream, every=5, listeners=[recording]):
        pass
    assert recording.calls == expected(None)


def test_a_resumed_run_passes_the_tick_that_it_continues_from(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_job(JOB, tmp_path, checkpoint=6, listeners=[stop_after(14)])
    recording = RecordingListener()
    run_job(JOB, tmp_path, resume=True, listeners=[recording])
    assert recording.calls[:2] == [("started", 12), ("stepped", 13)]
    assert recording.calls[1:] == expected(20)[expected(20).index(("stepped", 13)) :]


def test_started_receives_a_description_of_the_run(tmp_path: Path) -> None:
    seen = []

    class Looking(Listener):
        def started(self, run: onepass.evaluation.callbacks.Run) -> None:
            seen.append(run)

    result = run_job(JOB, tmp_path, listeners=[Looking()])
    (found,) = seen
    assert (found.job, found.folder, len(found.stream)) == (JOB, Path(result.out), 20)
    assert found.learner.params_sha256() == result.params_sha256


# ---- a listener that fails


@pytest.mark.parametrize("hook", HOOKS)
def test_an_observer_that_fails_is_dropped_and_named_and_changes_no_bit(
    hook: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, plain: onepass.runs.result.Result
) -> None:
    recording = RecordingListener()
    result = run_job(JOB, tmp_path, listeners=[Failing(hook), recording])
    assert values_of(result, SAME) == values_of(plain, SAME)
    assert list(result.dropped) == ["failing"]
    assert "ZeroDivisionError" in result.dropped["failing"]
    assert all(word in result.dropped["failing"] for word in (hook, "of all things"))
    (line,) = caplog.messages
    assert "'failing'" in line and "of all things" in line
    assert RunFolder(Path(result.out)).result() == result
    assert recording.calls == expected(20)


def test_a_listener_that_was_dropped_before_a_stop_stays_dropped(tmp_path: Path) -> None:
    class Recovered(RecordingListener):
        key = Failing.key

    with pytest.raises(Stopped):
        run_job(JOB, tmp_path, checkpoint=6, listeners=[Failing("task_ended"), stop_after(8)])
    recovered = Recovered()
    result = run_job(JOB, tmp_path, resume=True, listeners=[recovered])
    assert list(result.dropped) == [Failing.key]
    assert recovered.calls == []


@pytest.mark.parametrize("held", [Path("here"), np.float64(0.5)])
def test_a_listener_whose_state_a_checkpoint_cannot_hold_is_dropped(
    held: object, tmp_path: Path, plain: onepass.runs.result.Result
) -> None:
    class Hoarding(RecordingListener):
        def state_dict(self) -> dict:
            return {"best": [held]}

    with pytest.raises(Stopped):
        run_job(JOB, tmp_path, checkpoint=6, listeners=[Hoarding(), stop_after(8)])
    result = run_job(JOB, tmp_path, resume=True, listeners=[Hoarding()])
    assert list(result.dropped) == ["Hoarding"]
    assert values_of(result, SAME) == values_of(plain, SAME)


@pytest.mark.parametrize("line", [{"loss": float("nan")}, {"where": Path("here")}])
def test_a_line_must_be_plain_json(line: dict, tmp_path: Path) -> None:
    class Babbling(Listener):
        def scored(self, point: object) -> None:
            self.say(line)

    assert list(run_job(JOB, tmp_path, listeners=[Babbling()]).dropped) == ["Babbling"]


@pytest.mark.parametrize("hook", ["stepped", "finished"])
def test_an_interrupt_stops_the_run_wherever_it_arrives(hook: str, tmp_path: Path) -> None:
    class Interrupted(Listener):
        pass

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    listener = Interrupted()
    setattr(listener, hook, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_job(JOB, tmp_path, listeners=[listener])
    assert not (tmp_path / JOB.folder_name / "result.json").exists()


def test_a_recorder_that_fails_stops_the_run_which_can_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: onepass.runs.result.Result
) -> None:
    """On a full disk, for example. The last checkpoint stays."""
    append = RunFolder.append

    def full(folder: RunFolder, key: str, lines: list[str]) -> None:
        if json.loads(lines[0])["step"] == 15:
            raise WriteError("no space left")
        append(folder, key, lines)

    monkeypatch.setattr(RunFolder, "append", full)
    with pytest.raises(WriteError, match="no space"):
        run_job(JOB, tmp_path, checkpoint=6)
    monkeypatch.undo()
    recording = RecordingListener()
    result = run_job(JOB, tmp_path, resume=True, listeners=[recording])
    assert recording.calls[0] == ("started", 12)
    assert values_of(result, SAME) == values_of(plain, SAME)


# ---- recorded lines


def lines(path: Path) -> list[int]:
    text = (path / JOB.folder_name / "counting.jsonl").read_text()
    return [json.loads(line)["seen"] for line in text.splitlines()]


def test_the_lines_of_a_listener_are_recorded_under_its_key(tmp_path: Path) -> None:
    result = run_job(JOB, tmp_path, listeners=[Counting()])
    assert lines(tmp_path) == [3, 6, 9, 12, 15, 18]
    assert "counting.jsonl" in file_names(Path(result.out))
    assert len(RunFolder(Path(result.out)).points()) == 8


@pytest.mark.parametrize(("checkpoint", "stop"), [(5, 14), (5, 3), (None, 13), (4, 20)])
def test_a_stop_does_not_change_recorded_lines(
    checkpoint: int | None, stop: int, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        options = {"checkpoint": checkpoint, "listeners": [Counting(), stop_after(stop)]}
        run_job(JOB, tmp_path, **options)
    result = run_job(JOB, tmp_path, resume=True, checkpoint=checkpoint, listeners=[Counting()])
    assert lines(tmp_path) == [3, 6, 9, 12, 15, 18]
    assert result.dropped == {}
    points = [vars(point) for point in RunFolder(Path(result.out)).points()]
    assert [point["step"] for point in timeless(points)] == [4, 5, 8, 10, 12, 15, 16, 20]


@pytest.mark.parametrize("key", ["counting", "events"])
def test_two_listeners_cannot_share_a_key(key: str, tmp_path: Path) -> None:
    class Other(Listener):
        pass

    Other.key = key
    with pytest.raises(InputError, match=key):
        run_job(JOB, tmp_path, listeners=[Counting(), Other()])


# ---- progress


def test_progress_is_forwarded_at_the_start_at_scores_and_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause, steps in ((-1.0, range(21)), (1e9, [0, 4, 5, 8, 10, 12, 15, 16, 20])):
        monkeypatch.setattr(progress, "PAUSE", pause)
        messages: list[progress.Progress] = []
        result = run_job(JOB, tmp_path / str(pause), listeners=[Forwarder(messages.append)])
        assert sorted({now.step for now in messages}) == list(steps)
        assert {now.steps for now in messages} == {20}
        assert (messages[0].accuracy, messages[-1].accuracy) == (None, result.accuracy)
        assert (messages[0].task, messages[-1].task) == (0, 4)


def test_an_audience_without_listeners_works() -> None:
    audience = Audience([])
    audience.finished(None)
    assert (audience.state_dict(), audience.take_lines_by_key()) == ({}, {})


@pytest.mark.parametrize("key", ["a/b", "", ".."])
def test_a_key_that_is_not_a_file_name_is_refused_and_nothing_is_made(
    key: str, tmp_path: Path
) -> None:
    named = type("Named", (Listener,), {"key": key})
    with pytest.raises(InputError, match="usable as a file name"):
        run_job(JOB, tmp_path, listeners=[named()])
    assert not list(tmp_path.iterdir())


def test_slow_checkpoints_are_written_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = [], file.write_checkpoint

    def slowly(path: Path, content: dict) -> None:
        time.sleep(0.02)
        written.append(path)
        write(path, content)

    monkeypatch.setattr(file, "write_checkpoint", slowly)
    monkeypatch.setattr(onepass.runs.recorder, "SECONDS_BETWEEN", 0.0)
    result = run_job(JOB, tmp_path)
    assert 1 <= len(written) <= 2 + result.seconds / (10 * 0.02)
