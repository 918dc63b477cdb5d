"""What the balance probe tells of methods that know nothing of it."""

import math

import pytest
import torch

from onepass import ER, GSA, BalanceProbe, ClassIncremental, Finetune, evaluate, load

DATA = load("synthetic", classes=6, train_per_class=40, shape=(20,), seed=2)


def watched(learner, tasks=3):
    probe = BalanceProbe()
    learner.attach(probe)
    stream = ClassIncremental(DATA, tasks=tasks, seed=0)
    for _ in evaluate(learner, stream):
        pass
    return probe


def test_without_replay_old_classes_are_only_pushed_down():
    probe = watched(Finetune(seed=0))
    second = probe.history[1]
    assert sorted(second) == [0, 1, 2, 3]
    assert all(math.isinf(second[label]) for label in (0, 1))
    assert all(-10 < second[label] < 0 for label in (2, 3))


def test_history_has_a_row_for_every_task_that_was_followed_by_another():
    probe = watched(ER(memory=50, seed=0))
    assert [len(row) for row in probe.history] == [2, 4]
    assert sorted(probe.pn()) == list(range(6))


def test_the_probe_sees_what_gsa_sees_when_both_measure_all_samples():
    learner = GSA(memory=50, statistics="all", seed=0)
    probe = watched(learner)
    torch.testing.assert_close(probe.sums.positive, learner.balance.positive)
    torch.testing.assert_close(probe.sums.task_negative, learner.balance.task_negative)


def test_training_all_classes_at_once_is_nearly_balanced():
    probe = watched(Finetune(seed=0), tasks=1)
    assert all(-1.5 < rate < -0.6 for rate in probe.a_pn().values())


def test_a_probe_that_has_seen_nothing_says_so():
    with pytest.raises(ValueError, match="no step"):
        BalanceProbe().a_pn()
