"""Tests a learner that repeats its steps on each batch. `test_failing.py` tests failures in a
repeat."""

import pytest
import torch
from distilling import TASKS, LinearNorm
from tiny_learners import BOUNDARY, batches, flat, learned, random_batches, small

from onepass import ER, GSS, BiC
from onepass.learning import registry
from onepass.memory import Reservoir
from onepass.tools.checks import CHECKS


def learn_by_hand(learner, x, y, times):
    """Makes several steps on a batch, and stores it in the memory in the last one."""
    if not learner._prepared:
        learner.prepare(tuple(x.shape[1:]), x.dtype)
    labels, trainer = y.tolist(), learner.trainer
    known = not learner.class_index.has_unseen(labels)
    rows = learner._assign_rows(labels)
    for turn in range(times):

        def step(x, y, turn=turn):
            trainer.first_repeat, trainer.last_repeat = turn == 0, turn == times - 1
            return learner.step(x, y)

        done = trainer.run(step, x, rows)
    if known:
        learner.class_index.enter(labels)
    learner.steps += 1
    trainer.unfinished = False
    return done


@pytest.mark.parametrize("taught", [{}, {"average": 0.9, "distil": 1.0, "distil_raw": True}])
@pytest.mark.parametrize("key", ["er", "gsa", "gss", "aser", "derpp", "bic", "rainbow-rt"])
def test_repeats_equal_steps_that_store_the_batch_once(key, taught):
    kind = registry.get(key).learner
    settings = {"net": LinearNorm(), "lr": 0.05, **taught}
    repeated, by_hand = small(kind, repeats=3, **settings), small(kind, **settings)
    for item in batches(TASKS):
        if item == BOUNDARY:
            repeated.new_task()
            by_hand.new_task()
        else:
            steps = repeated.learn(*item), learn_by_hand(by_hand, *item, times=3)
            assert torch.equal(steps[0].loss, steps[1].loss)
        assert repeated.state_sha256() == by_hand.state_sha256()


def test_repeats_train_more_often():
    once, twice = (learned(small(ER, repeats=n), batches(TASKS)) for n in (1, 2))
    assert once.steps == twice.steps == 6
    assert not torch.allclose(flat(once), flat(twice), atol=1e-2)


@pytest.mark.parametrize("key", ["er", "gsa", "derpp", "rainbow-rt", "ocm"])
def test_the_memory_is_offered_each_sample_once(key, monkeypatch):
    offered = []
    count_offered = Reservoir._count_offered
    monkeypatch.setattr(
        Reservoir,
        "_count_offered",
        lambda store, more: (offered.append(int(more)), count_offered(store, more)),
    )
    learned(small(registry.get(key).learner, net=LinearNorm(), lr=0.05, repeats=3), batches(TASKS))
    assert offered == [len(labels) for labels in TASKS if labels != BOUNDARY]


def test_gss_keeps_the_contract_too():
    """Its whole contract takes long and is among the slow tests."""
    CHECKS["an_average_may_teach"](GSS)


def test_no_repeat_trains_on_samples_that_bic_holds_out(monkeypatch):
    learner = small(BiC, net=LinearNorm(), lr=0.05, memory=40, validation=0.5, repeats=3)
    trained, held = [], []
    forward = learner.forward

    def noting_forward(batch):
        trained.extend(row.tolist() for row in batch.x[batch.weight > 0])
        return forward(batch)

    monkeypatch.setattr(learner, "forward", noting_forward)
    for x, y in random_batches(6, size=6):
        learner.learn(x, y)
        held.extend(row.tolist() for row in learner.held_out.x[: int(learner.held_out.size)])
    assert len(held) > 10
    assert not [row for row in held if row in trained]
