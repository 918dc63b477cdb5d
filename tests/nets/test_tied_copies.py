"""Tests the copy of a network in evaluation mode: it shares tensors and has its own modes."""

import copy

import pytest
import torch
from torch import nn

import onepass
from onepass.nets import Classifier, Head, retie, tied_batch_norm_copy, tied_eval_copy


def a_net():
    body = nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 4)
    )
    rng = torch.Generator().manual_seed(0)
    for parameter in body.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=rng)
    return Classifier(body, Head(4, 8, rng))


def inputs(samples=7, seed=1):
    return torch.randn(samples, 5, generator=torch.Generator().manual_seed(seed))


def tensors(net):
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def modes(net):
    return [module.training for module in net.modules()]


def test_it_shares_tensors_but_not_modules():
    net = a_net()
    twin = tied_eval_copy(net)
    assert type(twin) is Classifier
    assert tensors(twin).keys() == tensors(net).keys()
    for name, tensor in tensors(net).items():
        assert tensors(twin)[name] is tensor
    pairs = list(zip(net.modules(), twin.modules(), strict=True))
    assert all(type(first) is type(second) and first is not second for first, second in pairs)


@pytest.mark.parametrize("training", [True, False])
def test_it_has_its_own_modes(training):
    net = a_net().train(training)
    net.body[1].train(not training)
    before = modes(net)
    twin = tied_eval_copy(net)
    assert not any(modes(twin))
    assert modes(net) == before
    net.train()
    assert not any(modes(twin))
    twin.train()
    twin.eval()
    assert all(modes(net))


def test_a_copy_with_batch_statistics_updates_no_running_ones():
    """It drops nothing out either. Layers that do not train in the network stay in evaluation
    mode."""
    net = a_net().train()
    norm, before = net.body[1], copy.deepcopy(net.body[1])
    logits = tied_batch_norm_copy(net, net)(inputs())
    assert torch.equal(norm.running_mean, before.running_mean)
    assert torch.equal(norm.running_var, before.running_var)
    net.body[2].eval()
    assert torch.equal(logits, net(inputs()))
    net.body[1].eval()
    assert torch.equal(tied_batch_norm_copy(net, net)(inputs()), tied_eval_copy(net)(inputs()))


def test_it_computes_the_networks_evaluation_output_and_updates_no_statistics():
    net = a_net()
    twin = tied_eval_copy(net)
    net(inputs())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    got = twin(inputs(seed=2))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(got, net.eval()(inputs(seed=2)))


def test_it_follows_every_step_of_training_and_every_statistic():
    net = a_net()
    twin = tied_eval_copy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, scores = inputs(seed=2), []
    for step in range(3):
        optimizer.zero_grad()
        net(inputs(seed=step)).square().mean().backward()
        optimizer.step()
        scores.append(twin(x).detach())
        assert torch.equal(scores[-1], tied_eval_copy(net)(x))
    assert not torch.equal(scores[0], scores[1])
    net(10 + inputs(seed=9))  # statistics alone
    assert not torch.equal(twin(x), scores[-1])


def test_gradients_reach_the_parameters_of_the_network():
    net = a_net()
    tied_eval_copy(net)(inputs()).sum().backward()
    assert all(parameter.grad is not None for parameter in net.body.parameters())


def test_retie_shares_a_replaced_buffer():
    """Some modules replace their statistics instead of updating them in place."""
    net = a_net()
    twin, x = tied_eval_copy(net), inputs()
    net.body[1].running_mean = torch.full((6,), 3.0)
    net.head.free = torch.ones(8, dtype=torch.bool)
    assert twin.body[1].running_mean is not net.body[1].running_mean
    retie(twin, net)
    for name, tensor in tensors(net).items():
        assert tensors(twin)[name] is tensor
    assert torch.equal(twin(x), net.eval()(x))
    assert not any(modes(twin))


# ---- the tied copy in a learner


class Renewing(nn.Module):
    """Features minus a mean that each training step replaces by a new tensor."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        if self.training:
            self.mean = x.detach().mean(dim=0)
        return self.layer(x - self.mean)


def learned(net, steps=3, classes=2):
    learner = onepass.Finetune(net=net, device="cpu", augment="none")
    for seed in range(steps):
        learner.learn(inputs(2 * classes, seed), list(range(classes)) * 2)
    return learner


@pytest.mark.parametrize("make", [lambda: a_net().body, Renewing], ids=["batch norm", "renewing"])
def test_a_learners_eval_model_is_its_current_network(make):
    learner = learned(make())
    for seed in range(3):
        evaluator = learner.trainer.eval_model
        assert not any(modes(evaluator))
        assert all(modes(learner.model))
        for name, tensor in tensors(learner.model).items():
            assert tensors(evaluator)[name] is tensor
        learner.learn(inputs(4, seed), [0, 1, 2, 3])


def test_scores_use_a_replaced_buffer():
    learner, x = learned(Renewing()), inputs()
    before = learner.scores(x)
    learner.learn(7 + inputs(4), [0, 1, 0, 1])
    after = learner.scores(x)
    mean = learner.model.body.mean
    expected = learner.model.head(learner.model.body.layer(x - mean))[:, :2]
    torch.testing.assert_close(after, expected.detach())
    assert float((after - before).abs().max()) > 0.5


def test_after_growth_the_eval_model_has_the_new_rows():
    learner = learned(a_net().body)
    learner.learn(inputs(20), list(range(20)))
    assert learner.trainer.eval_model.head.capacity == 32
    for name, tensor in tensors(learner.model).items():
        assert tensors(learner.trainer.eval_model)[name] is tensor
    assert learner.scores(inputs()).shape == (7, 20)


def test_predicting_does_not_switch_a_network_to_training_mode():
    learner = learned(a_net().body)
    learner.model.body[2].eval()
    before = modes(learner.model)
    learner.predict(inputs())
    learner.scores(inputs())
    learner.snapshot().predict(inputs())
    assert modes(learner.model) == before


class Remembers(nn.Module):
    """A network that keeps its last output, as for debugging, and a mean in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.mean = torch.zeros(6)

    def forward(self, x):
        if self.training:
            self.mean = (0.9 * self.mean + 0.1 * x.mean(dim=0)).detach()
        self.last = torch.relu(self.layer(x - self.mean))
        return self.last


def test_a_network_that_keeps_its_last_output_can_grow_and_be_copied():
    learner = onepass.ER(memory=20, replay=8, net=Remembers(), device="cpu")
    for label in range(20):
        learner.learn(torch.randn(2, 6), [label, label])
    assert learner.scores(torch.randn(3, 6)).shape == (3, 20)
    assert learner.snapshot().scores(torch.randn(3, 6)).shape == (3, 20)


def test_statistics_in_plain_attributes_follow_training():
    learner = onepass.ER(memory=20, replay=8, net=Remembers(), device="cpu")
    for _ in range(50):
        learner.learn(50 + torch.randn(4, 6), [0, 1, 0, 1])
    learner.predict(torch.randn(2, 6))
    assert torch.equal(learner.trainer.eval_model.body.mean, learner.model.body.mean)
    assert learner.model.body.mean.mean() > 45
