"""The balance probe: what it measures of methods that do not know it, and what a run records."""

import json
import math
import multiprocessing
import signal
from pathlib import Path

import pytest
import torch
from command import execute_until_write, onepass, untouched
from isolated_registries import isolate_registries
from recording_listeners import Stopped, stop_after

from onepass import ER, GSA, BalanceProbe, ClassIncremental, Finetune, evaluate, load
from onepass.base.errors import InputError, RunError
from onepass.evaluation import probes
from onepass.evaluation.callbacks import Listener
from onepass.runs.execute import run_job
from onepass.runs.spec import Job

DATA = load("synthetic", classes=6, train_per_class=40, shape=(20,), seed=2)
JOB = Job("er", "synthetic", device="cpu", probes=("balance",))  # 60 steps, 5 tasks of 12


def watched(learner, tasks=3):
    probe = BalanceProbe()
    stream = ClassIncremental(DATA, tasks=tasks, seed=0)
    for _ in evaluate(learner, stream, listeners=[probe]):
        pass
    return probe


def test_without_replay_old_classes_are_only_pushed_down():
    probe = watched(Finetune(seed=0))
    second = probe.history[1]
    assert sorted(second) == [0, 1, 2, 3]
    assert all(second[label] == -math.inf for label in (0, 1))
    assert all(-10 < second[label] < 0 for label in (2, 3))


def test_history_has_a_row_for_every_task_that_another_followed():
    probe = watched(ER(memory=50, seed=0))
    assert [len(row) for row in probe.history] == [2, 4]
    assert sorted(probe.pn()) == list(range(6))


def test_the_probe_sees_what_gsa_sees_when_both_measure_all_samples():
    """From the second task on: in the first, GSA draws X^mix but does not train on it."""
    common = GSA.presets["common"].settings
    learner, probe = GSA(**common, memory=50, seed=0), BalanceProbe()
    stream = ClassIncremental(DATA, tasks=3, seed=0)
    for index, batch in enumerate(stream):
        task = stream.task_of(index)
        if task > learner.task:
            learner.new_task()
            if task == 1:
                before = learner.balance.positive.clone()
        step = learner.learn(*batch)
        if task:
            probe.stepped(learner, step)
    torch.testing.assert_close(probe.sums.positive, learner.balance.positive - before)
    torch.testing.assert_close(probe.sums.task_negative, learner.balance.task_negative)


def test_training_all_classes_at_once_is_nearly_balanced():
    probe = watched(Finetune(seed=0), tasks=1)
    assert all(-1.5 < rate < -0.6 for rate in probe.a_pn().values())


def test_a_probe_without_a_step_raises_an_error():
    with pytest.raises(ValueError, match="no step"):
        BalanceProbe().a_pn()


def test_a_plain_loop_can_call_the_probe_too():
    probe, learner = BalanceProbe(), ER(memory=50, seed=0)
    stream = ClassIncremental(DATA, tasks=3, seed=0)
    for step, (x, y) in enumerate(stream):
        if stream.starts_task(step):
            learner.new_task()
        probe.stepped(learner, learner.learn(x, y))
    assert probe.a_pn() == watched(ER(memory=50, seed=0)).a_pn()


def test_the_probe_measures_batches_of_the_users_too():
    """The rates equal those of a stream with known tasks if the caller announces its tasks."""
    probe, learner = BalanceProbe(), ER(memory=50, seed=0)
    stream = ClassIncremental(DATA, tasks=3, seed=0)

    def batches():
        for step, batch in enumerate(stream):
            if stream.starts_task(step):
                learner.new_task()
            yield batch

    test = (DATA.test_x, DATA.test_y)
    list(evaluate(learner, batches(), test=test, listeners=[probe]))
    assert probe.a_pn() == watched(ER(memory=50, seed=0)).a_pn()


# ---- recorded


def recorded(out):
    return (out / JOB.folder_name / "balance.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The lines that a run records if it is never stopped."""
    out = tmp_path_factory.mktemp("whole")
    run_job(JOB, out)
    return recorded(out)


def test_a_run_records_a_line_whenever_it_is_scored(whole):
    lines = [json.loads(line) for line in whole.splitlines()]
    assert [line["step"] for line in lines] == list(range(3, 61, 3))  # 20 points
    assert [line["ended"] for line in lines] == [False, False, False, True] * 5


def test_a_run_records_a_line_for_each_task_that_has_ended(whole):
    lines = [line for line in map(json.loads, whole.splitlines()) if line["ended"]]
    assert [line["task"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["step"] for line in lines] == [12, 24, 36, 48, 60]
    for task, line in enumerate(lines):
        known = [str(label) for label in range(2 * task + 2)]
        assert sorted(line["pn"]) == sorted(line["a_pn"]) == known
        assert len(line["pn_of_tasks"]) == task + 1
        assert all(rate < 0 for rate in line["a_pn"].values())
        low, high = sorted(line["pn"][label] for label in known[-2:])
        assert low <= line["pn_of_tasks"][-1] <= high  # a ratio of sums lies between the ratios


def test_rates_that_are_not_finite_are_null(tmp_path):
    """Without replay an old class has no gradient that pushes it up."""
    result = run_job(Job("finetune", "synthetic", probes=("balance",)), tmp_path)
    lines = (Path(result.out) / "balance.jsonl").read_text().splitlines()
    line = [line for line in map(json.loads, lines) if line["ended"]][1]
    assert [line["pn"][label] for label in "01"] == [None, None]
    assert line["pn_of_tasks"][0] is None
    assert all(line["pn"][label] < 0 for label in "23")


@pytest.mark.slow
@pytest.mark.parametrize("moment", [3, 4, 5])
def test_a_kill_and_a_resumption_leave_the_same_probe_file(moment, tmp_path, whole):
    """The stop leaves lines after the last checkpoint, or comes before the first checkpoint."""
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=execute_until_write, args=(JOB, tmp_path, moment))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    result = run_job(JOB, tmp_path, resume=True, checkpoint=20)
    assert recorded(tmp_path) == whole
    assert result.dropped == {}


# ---- probes by name


def test_probes_are_no_part_of_a_runs_identity(tmp_path):
    plain = Job("er", "synthetic", device="cpu")
    assert (JOB.folder_name, JOB.variant) == (plain.folder_name, plain.variant)
    first = run_job(plain, tmp_path)
    with untouched(tmp_path):
        assert run_job(JOB, tmp_path, resume=True) == first


@pytest.mark.parametrize(("began", "now"), [((), ("balance",)), (("balance",), ())])
def test_a_broken_run_resumes_only_with_the_probes_it_began_with(began, now, tmp_path):
    with pytest.raises(Stopped):
        first = Job("er", "synthetic", device="cpu", probes=began)
        run_job(first, tmp_path, checkpoint=10, listeners=[stop_after(25)])
    common = ("run", "er", "--preset", "common")
    arguments = (*common, "--dataset", "synthetic", "--device", "cpu", "--resume", "--json")
    named = [word for name in now for word in ("--probe", name)]
    with untouched(tmp_path):
        done = onepass(*arguments, *named, "--out", tmp_path)
    assert done.status == 2
    assert "other probes" in done.error and "balance" in done.error and "none" in done.error
    with pytest.raises(RunError, match="other probes"):
        run_job(Job("er", "synthetic", device="cpu", probes=now), tmp_path, resume=True)


def test_a_probe_is_one_class_with_a_name(monkeypatch, tmp_path):
    isolate_registries(monkeypatch, probes.PROBES)

    @probes.probe("test-losses")
    class Losses(Listener):
        """The loss of every step. More of it."""

        def stepped(self, learner, step):
            self.say({"loss": float(step.loss)})

    arguments = ("run", "er", "--dataset", "synthetic", "--device", "cpu", "--json")
    done = onepass(*arguments, "--probe", "test-losses", "--probe", "balance", "--out", tmp_path)
    folder = Path(done.record["out"])
    assert len((folder / "test-losses.jsonl").read_text().splitlines()) == 60
    assert (folder / "balance.jsonl").exists()
    listed = onepass("list", "probes", "--json").records
    assert {"probe": "test-losses", "what": "The loss of every step"} in listed
    assert [row["probe"] for row in listed][-1] == "test-losses"


@pytest.mark.parametrize("taken", probes.registry.RESERVED)
def test_a_probe_cannot_have_a_reserved_name(taken):
    with pytest.raises(InputError, match=f"cannot be called '{taken}'"):
        probes.probe(taken)(Listener)


def test_a_probe_that_is_named_twice_is_refused(tmp_path):
    twice = ("--probe", "balance", "--probe", "balance")
    done = onepass("run", "er", "--dataset", "synthetic", *twice, "--out", tmp_path)
    assert done.status == 2 and "'balance' is named twice" in done.error
