"""Tests a learner that predicts with a moving average: limits and closed forms of the average, and
its effects."""

import copy

import pytest
import torch
from distilling import TASKS, LinearNorm, same, weights
from tiny_learners import BOUNDARY, batches, corners, learned, small

import onepass
from onepass import ER, BiC, Finetune
from onepass.learning import registry
from onepass.learning.memory_contents import copy_bytes


def following(rule):
    """Returns an average, and a network of one number that the test sets."""
    learner = small(Finetune, average=rule)
    learner.prepare((6,), torch.float32)
    for model in (learner.model, learner.trainer.distillation.averaged.model):
        for parameter in model.parameters():
            parameter.data.zero_()
    return (
        learner.trainer.distillation.averaged,
        learner.model.head.weight.data,
        learner.trainer.distillation.averaged.model.head.weight,
    )


@pytest.mark.parametrize("key", ["er", "gsa", "scr", "bic", "lucir"])
def test_an_average_of_decay_0_predicts_like_the_network(key):
    """It is exact if no number more than doubles or halves in a step, because then now - mean is
    exact."""
    kind, x = registry.get(key).learner, corners([0, 1, 2, 3], torch.Generator().manual_seed(1))[0]
    plain, averaged = (
        learned(small(kind, net=LinearNorm(), lr=0.05, average=rule), batches(TASKS))
        for rule in (None, 0.0)
    )
    assert averaged.trainer.distillation.averaged is not None
    torch.testing.assert_close(averaged.scores(x), plain.scores(x), atol=1e-5, rtol=1e-5)


def test_the_average_grows_with_the_head():
    labels = [[0, 1, 1], BOUNDARY, list(range(20)), [3, 19, 18]]
    learner = learned(small(ER, net=LinearNorm(), lr=0.05, average=0.0), batches(labels))
    head, averaged = learner.model.head, learner.trainer.distillation.averaged.model.head
    assert averaged.capacity == 32
    torch.testing.assert_close(averaged.weight, head.weight)
    torch.testing.assert_close(averaged.bias, head.bias)


@pytest.mark.parametrize("rule", [0, 0.5, 0.99, "growing"])
def test_the_average_of_a_constant_network_is_that_network_bit_for_bit(rule):
    learner = small(Finetune, net=LinearNorm(), average=rule)
    learner.prepare((6,), torch.float32)
    for _ in range(50):
        learner.trainer.distillation.averaged.follow()
        assert same(weights(learner.trainer.distillation.averaged.model), weights(learner.model))


@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_the_average_of_a_drifting_network_lags_by_a_known_number_of_steps(decay):
    """theta_t = t v: theta_t - mean_t goes to v (1 - a) / a, where a = 1 - decay."""
    averaged, now, mean = following(decay)
    v = torch.linspace(-1, 2, now.numel()).view_as(now)
    for step in range(1, 200):
        now.copy_(step * v)
        averaged.follow()
    torch.testing.assert_close(now - mean, v * decay / (1 - decay), rtol=1e-4, atol=1e-4)


def test_a_growing_average_is_its_closed_form():
    """For theta_t = t v, the recursion with rates 17 / (t + 16) gives mean_t = v (17 t + 1) / 18.
    It begins as the network and lags by an eighteenth of all steps."""
    averaged, now, mean = following("growing")
    mean += 5  # the initial value does not matter
    v = torch.linspace(-1, 2, now.numel()).view_as(now)
    for step in range(1, 300):
        now.copy_(step * v)
        averaged.follow()
        torch.testing.assert_close(mean, v * (17 * step + 1) / 18, rtol=1e-4, atol=2e-5)


def test_a_growing_average_is_the_weighted_mean_by_a_plain_loop():
    averaged, now, mean = following("growing")
    source, expected = torch.Generator().manual_seed(3), 0.0
    for step in range(1, 60):
        now.copy_(torch.randn(now.shape, generator=source))
        averaged.follow()
        rate = max(17 / (step + 16), 1 / 1000)
        expected = (1 - rate) * expected + rate * now.double()
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_growing_average_never_spans_more_than_1000_steps():
    averaged, now, mean = following("growing")
    spans = []
    for updates in (1, 2, 100, 16983, 16984, 16985, 10**5, 10**7):
        averaged.updates.fill_(updates)
        spans.append(1 / float(averaged.rate()))
    assert spans[0] == 1
    assert spans == sorted(spans)
    assert max(spans) == pytest.approx(1000)
    for step in range(3000):  # from now on the lag is at most 999 v
        now.fill_(step + 1)
        averaged.follow()
    lag = 999 * (1 - (999 / 1000) ** 3000)
    assert float((now - mean).mean()) == pytest.approx(lag, rel=1e-3)


def test_an_average_by_arrivals_spans_a_quarter_of_the_steps_since_a_class_arrived():
    """The rate is 4 / (4 + s). A new class sets s to zero, but a new task does not."""
    learner = small(ER, average="arrivals")
    rates = []
    for labels in ([0, 1], [1, 0], [0, 0], [2, 0], [1, 2], BOUNDARY, [0, 1], [3, 1], [3, 0]):
        if labels == BOUNDARY:
            learner.new_task()
        else:
            learner.learn(*corners(labels, torch.Generator().manual_seed(1)))
            rates.append(4 / float(learner.trainer.distillation.averaged.rate()) - 4)
    assert rates == pytest.approx([1, 2, 3, 1, 2, 3, 1, 2])
    learner.trainer.distillation.averaged.updates.fill_(10**6)
    assert float(learner.trainer.distillation.averaged.rate()) == pytest.approx(1 / 1000)


def test_an_average_by_arrivals_resumes_its_count(tmp_path):
    learner = learned(small(ER, average="arrivals"), batches([[0, 1], [1, 0], [0, 0]]))
    learner.save(tmp_path / "learner.pt")
    opened = onepass.open(tmp_path / "learner.pt", device="cpu", net=learner.net)
    opened.learn(*corners([0, 1], torch.Generator().manual_seed(1)))
    assert int(opened.trainer.distillation.averaged.updates) == 4


def test_the_average_counts_optimiser_steps():
    learner = learned(small(ER, average="growing", repeats=3), batches(TASKS))
    assert int(learner.trainer.distillation.averaged.updates) == 3 * learner.steps == 18


def test_bic_corrects_the_logits_of_the_average():
    """The correction is fitted to the logits of the predicting network."""
    settings = {"net": LinearNorm(), "lr": 0.05, "memory": 40, "validation": 0.5, "average": 0.9}
    learner = learned(small(BiC, **settings), batches(TASKS))
    other, before = copy.deepcopy(learner), learner.correction.state_dict()
    with torch.no_grad():
        other.model.head.weight.zero_()
    for either in (learner, other):
        either.end_task()
    assert same(other.correction.state_dict(), learner.correction.state_dict())
    assert not same(before, learner.correction.state_dict())


def test_the_average_counts_among_the_copies():
    plain, averaged = (learned(small(ER, average=rule), batches(TASKS)) for rule in (None, 0.5))
    own = sum(
        parameter.numel() * parameter.element_size()
        for parameter in averaged.trainer.distillation.averaged.model.parameters()
    )
    assert copy_bytes(plain) == 0
    assert copy_bytes(averaged) == own > 0
