"""Whole steps of GSA against a naive second implementation and finite differences."""

import naive_gsa as naive
import pytest
import torch
from gsa_against_naive import each_case, gsa, naive_steps, stream
from tiny_learners import Magnify, as_images, double, kept_logits
from torch import nn


@each_case
def test_terms_and_loss_agree_with_the_naive_implementation(name, settings):
    for now in naive_steps(gsa(**settings), stream(name)):
        got = [now.step.terms[term].item() for term in ("T1", "T2", "T3")]
        assert got == pytest.approx(now.terms, rel=1e-5, abs=1e-6)
        assert now.step.loss.item() == pytest.approx(sum(now.terms), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("current", [0, 5])
@pytest.mark.parametrize("forwards", ["joint", "separate"])
def test_mirror_images_count_as_samples(forwards, current):
    learner = gsa(net=nn.Flatten(), mirror=True, forwards=forwards, current=current)
    for now in naive_steps(learner, as_images(stream("tasks"))):
        assert [len(batch) for batch in now.case[:2]] == [2 * (10 + current), 24]
        got = [now.step.terms[term].item() for term in ("T1", "T2", "T3")]
        assert got == pytest.approx(now.terms, rel=1e-5, abs=1e-6)
        torch.testing.assert_close(
            now.gradient.double(), double(naive.gradients(*now.case)), rtol=1e-4, atol=1e-6
        )


@each_case
def test_gradients_on_the_logits_have_their_closed_form(name, settings):
    for now in naive_steps(gsa(**settings), stream(name)):
        torch.testing.assert_close(
            now.gradient.double(), double(naive.gradients(*now.case)), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tasks", {"mix": 6}),
        ("late classes", {"mix": 6}),
        ("late classes", {"mix": 6, "update": "after"}),
        ("old classes come back", {"mix": 6}),
        ("tasks", {"mix": 6, "current": 4}),
        ("short batches", {"mix": 6, "memory": 0}),
    ],
    ids=str,
)
def test_gradients_on_the_logits_agree_with_finite_differences(name, settings):
    for now in naive_steps(gsa(**settings), stream(name)):
        torch.testing.assert_close(
            now.gradient.double(), double(naive.finite_differences(*now.case)), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize(
    "name", ["tasks", "late classes", "old classes come back", "one class at a time"]
)
@pytest.mark.parametrize("memory", [0, 30])
def test_logits_of_ten_thousand_keep_everything_finite(name, memory):
    learner = gsa(net=Magnify(1e4), memory=memory, lr=1e-9)
    largest = 0.0
    for now in naive_steps(learner, stream(name)):
        largest = max(largest, *(out.logits.abs().max().item() for out in now.step.outputs))
        got = [now.step.terms[term].item() for term in ("T1", "T2", "T3")]
        assert got == pytest.approx(now.terms, rel=1e-4, abs=5e-3)
        assert bool(torch.isfinite(now.gradient).all())
        expected = double(naive.gradients(*now.case))
        torch.testing.assert_close(now.gradient.double(), expected, rtol=0, atol=5e-3)
    assert largest > 1e4
    assert bool(torch.isfinite(learner.model.head.weight).all())


def test_a_class_that_only_rounding_pushes_down_keeps_everything_finite():
    learner = gsa(net=Magnify(0.0), lr=1e-6)
    learner.learn(torch.zeros(4, 6), [0] * 4)
    learner.new_task()
    with torch.no_grad():
        learner.model.head.bias[:2] = torch.tensor([0.0, -720.0])
    step = learner.learn(torch.zeros(4, 6), [1] * 4)
    assert bool(torch.isfinite(step.loss))
    assert bool(torch.isfinite(learner.model.head.bias).all())


@pytest.mark.parametrize("current", [0, 7])
@pytest.mark.parametrize("forwards", ["joint", "separate"])
@pytest.mark.parametrize("mirror", [False, True])
def test_the_cost_of_a_step_agrees_with_the_forward_counter(current, forwards, mirror):
    learner = gsa(net=nn.Flatten(), mix=12, current=current, forwards=forwards, mirror=mirror)
    for item in list(as_images(stream("tasks")))[:3]:
        with kept_logits() as kept:
            learner.learn(*item)
        trained = sum(len(logits) for logits in kept)
        assert trained == learner.cost(10).trained == (1 + mirror) * (10 + current + 12)
