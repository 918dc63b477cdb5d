"""The rates of GSA, w and v: the paper's values, their limits, and the sums behind them."""

import math

import pytest
import torch
from gsa_against_naive import BALANCED, each_case, gsa, naive_steps, stream
from tiny_learners import Magnify, learned


@each_case
def test_sums_and_rates_agree_with_the_naive_implementation(name, settings):
    learner = gsa(**settings)
    for now in naive_steps(learner, stream(name)):
        for part in ("positive", "negative", "task_positive", "task_negative"):
            expected = [getattr(now.sums, part)[c] for c in range(len(learner.seen))]
            assert getattr(learner.balance, part).tolist() == pytest.approx(expected, abs=1e-9)
        if now.rates is None:
            continue
        w, log_v = now.rates
        for c in range(min(len(w), len(learner.classes))):
            assert w[c].item() == pytest.approx(now.case[4][c], rel=1e-6)
            assert log_v[c].exp().item() == pytest.approx(now.case[5][c], rel=1e-5)


def test_a_new_class_outside_the_mix_is_left_out_until_it_is_sampled():
    *_, last = naive_steps(gsa(mix=2), stream("late classes"))
    v = last.case[5]
    assert 0.0 in v.values()
    assert bool(torch.isfinite(last.step.loss)) and bool(torch.isfinite(last.gradient).all())


def test_constant_logits_and_balanced_labels_keep_every_rate_balanced():
    learner = gsa(net=Magnify(0.0), mix=8, lr=1e-12, statistics="mix")
    learner.learn(torch.zeros(4, 6), [0, 1, 0, 1])
    learner.new_task()
    learner.balance.positive.zero_()
    learner.balance.negative.zero_()
    with torch.no_grad():
        learner.model.head.bias.fill_(7)
    step = learner.learn(torch.zeros(4, 6), [2, 2, 3, 3])
    assert sorted(step.outputs[1].y.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    w, log_v = learner.rates()
    assert w[:4].tolist() == pytest.approx([BALANCED] * 4)
    assert log_v[:4].tolist() == pytest.approx([0] * 4, abs=1e-6)
    expected = [math.log(2), BALANCED * math.log(2), BALANCED * math.log(3)]
    assert [term.item() for term in step.terms.values()] == pytest.approx(expected)


def test_rates_without_gradients_are_one_and_balanced():
    items = list(stream("tasks"))
    learner = learned(gsa(update="after"), items[:3])
    for now in naive_steps(gsa(update="after"), iter(items[:1])):
        assert set(now.case[4].values()) == {BALANCED}
    learner.new_task()
    assert learner.rates()[1].tolist() == [0] * 16
    assert learner.rates()[0][3:].tolist() == pytest.approx([BALANCED] * 13)


def test_no_gradient_flows_through_the_rates():
    now = list(naive_steps(gsa(), stream("tasks")))[-1]
    w, log_v = now.rates
    assert not w.requires_grad and not log_v.requires_grad
