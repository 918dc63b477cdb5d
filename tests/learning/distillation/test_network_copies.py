"""Tests copies of the network: their values, when they change, and that they are saved."""

import copy
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from isolated_registries import isolate_registries
from tiny_learners import with_batchnorm

from onepass import ER
from onepass.learning.memory_contents import copy_bytes
from onepass.learning.network_copies import PreviousNetwork
from onepass.learning.registry import METHODS, method

DECAY = 0.9


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Registers the learner below during a test, so that it can be saved."""
    isolate_registries(monkeypatch, METHODS)
    method("remembering", paper="a test", year=0)(Remembering)


@dataclass(kw_only=True, eq=False)
class Remembering(ER):
    """A learner that keeps the previous network and does not use it."""

    previous: PreviousNetwork = field(init=False)

    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.previous = PreviousNetwork(self.trainer)


def averaging(**settings):
    return made(ER, average=DECAY, **settings)


def made(kind, **settings):
    chosen = {"net": with_batchnorm(), "memory": 20, "replay": 8, "device": "cpu", "seed": 3}
    return kind(**{**chosen, **settings})


def batch(seed, classes=(0, 1)):
    rng = torch.Generator().manual_seed(seed)
    y = torch.tensor(classes).repeat(5)
    return torch.randn(len(y), 6, generator=rng) + y.unsqueeze(1), y


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_a_copy_returns_its_own_features_without_a_gradient():
    learner = made(Remembering)
    x, y = batch(0)
    learner.learn(x, y)
    learner.new_task()
    then = learner.trainer.eval_model.features(x).detach()
    for seed in range(4):
        learner.learn(*batch(seed, (2, 3)))
    features = learner.previous.features(x)
    torch.testing.assert_close(features, then)
    assert not features.requires_grad
    assert not torch.allclose(learner.trainer.eval_model.features(x), then)


def test_the_previous_network_is_copied_at_the_boundary():
    learner = made(Remembering)
    for seed in range(4):
        learner.learn(*batch(seed))
    assert not learner.previous.known.any(), "before the first boundary it knows no class"
    at_boundary = weights(learner.model)
    learner.new_task()
    for seed in range(4, 8):
        learner.learn(*batch(seed, (2, 3)))
    assert same(weights(learner.previous.model), at_boundary)
    assert learner.previous.known.nonzero().flatten().tolist() == [0, 1]
    assert not same(weights(learner.model), at_boundary)


def test_the_copy_predicts_like_the_network_then_in_evaluation_mode():
    learner, x = made(Remembering), batch(99)[0]
    for seed in range(4):
        learner.learn(*batch(seed))
    logits = learner.trainer.eval_model(x).detach()
    learner.new_task()
    learner.learn(*batch(5, (2, 3)))
    assert torch.equal(learner.previous(x), logits)
    assert not learner.previous(x).requires_grad


def test_it_can_be_copied_by_the_method_only():
    learner = made(Remembering)
    learner.learn(*batch(0))
    learner.previous.at_boundaries = False
    learner.new_task()
    assert not learner.previous.known.any()
    learner.previous.take_copy()
    assert same(weights(learner.previous.model), weights(learner.model))


def test_under_bf16_its_weights_are_cast_once_and_give_the_same_logits():
    learner, x = made(Remembering, precision="bf16"), batch(99)[0]
    for seed in range(3):
        learner.learn(*batch(seed))
    logits = learner.trainer.eval_model(x).detach()
    learner.new_task()
    assert learner.previous.model.body.layer.weight.dtype == torch.bfloat16
    assert learner.previous.model.body.norm.weight.dtype == torch.float32
    assert torch.equal(learner.previous(x), logits)


def test_copies_grow_with_the_head_and_share_its_initial_rows():
    for make in (partial(made, Remembering), averaging):
        learner = make()
        learner.learn(*batch(0))
        learner.new_task()
        learner.learn(*batch(1, tuple(range(2, 20))))
        copied = learner.trainer.distillation.averaged or learner.previous
        assert copied.model.head.capacity == learner.model.head.capacity == 32
        spare = slice(20, 32)  # spare rows have their initial values in both
        assert torch.equal(copied.model.head.weight[spare], learner.model.head.weight[spare])


def test_no_optimiser_trains_a_copy_and_a_copy_does_not_change_training():
    plain, watched = made(ER), averaging()
    for seed in range(6):
        plain.learn(*batch(seed))
        watched.learn(*batch(seed))
    assert same(weights(plain.model), weights(watched.model))
    moved = {id(p) for group in watched.trainer.optimizer.param_groups for p in group["params"]}
    assert not moved & {id(p) for p in watched.trainer.distillation.averaged.model.parameters()}


def test_the_average_is_the_recursion_by_hand():
    """mean_t = mean_{t-1} + max(1 - decay, 1 / (t + 1)) (network_t - mean_{t-1}), including the
    BatchNorm statistics."""
    learner = averaging()
    learner.prepare((6,), torch.float32)
    expected = {
        n: v.double() for n, v in weights(learner.trainer.distillation.averaged.model).items()
    }
    for step in range(1, 16):
        learner.learn(*batch(step))
        rate = max(1 - DECAY, 1 / (step + 1))
        for name, value in learner.model.state_dict().items():
            expected[name] += rate * (value.double() - expected[name])
    found = learner.trainer.distillation.averaged.model.state_dict()
    for name in found:
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(found[name].double(), expected[name], atol=1e-5, rtol=1e-5)
    counted = learner.model.state_dict()["body.norm.num_batches_tracked"]
    assert torch.equal(found["body.norm.num_batches_tracked"], counted)


def test_the_average_begins_as_the_plain_mean_of_the_networks():
    learner, seen = averaging(), []
    learner.prepare((6,), torch.float32)
    seen.append(weights(learner.model)["body.layer.weight"])
    for seed in range(5):
        learner.learn(*batch(seed))
        seen.append(weights(learner.model)["body.layer.weight"])
    found = learner.trainer.distillation.averaged.model.body.layer.weight
    torch.testing.assert_close(found, torch.stack(seen).mean(dim=0), atol=1e-6, rtol=1e-5)


def test_predictions_come_from_the_average():
    learner, x = averaging(), batch(99)[0]
    for seed in range(6):
        learner.learn(*batch(seed))
    by_average = learner.trainer.distillation.averaged(learner.views.normalise(x))[:, :2]
    assert torch.equal(learner.scores(x), by_average)
    assert torch.equal(learner.snapshot().scores(x), by_average)
    assert not torch.equal(by_average, learner.trainer.eval_model(x)[:, :2])


@pytest.mark.parametrize("make", [partial(made, Remembering), averaging])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_learner_with_a_copy_resumes_exactly(make, precision, tmp_path):
    import onepass

    def teach(learner, seeds):
        for seed in seeds:
            if seed in (3, 7):
                learner.new_task()
            learner.learn(*batch(seed, (0, 1) if seed < 3 else tuple(range(seed, seed + 6))))
        return learner

    uninterrupted, stopped = (make(precision=precision) for _ in range(2))
    teach(uninterrupted, range(12))
    teach(stopped, range(5)).save(tmp_path / "learner.pt")
    opened = onepass.open(tmp_path / "learner.pt", device="cpu", net=with_batchnorm())
    assert teach(opened, range(5, 12)).state_sha256() == uninterrupted.state_sha256()


def test_the_bytes_of_a_copy_are_declared():
    learner = made(Remembering)
    learner.learn(*batch(0))
    kept = learner.previous.state_dict()["model"].values()
    assert copy_bytes(learner) == sum(value.numel() * value.element_size() for value in kept) > 0


def test_a_deep_copy_of_a_learner_has_its_own_copies():
    learner = averaging()
    learner.learn(*batch(0))
    other = copy.deepcopy(learner)
    before = weights(learner.trainer.distillation.averaged.model)
    other.learn(*batch(1))
    assert same(weights(learner.trainer.distillation.averaged.model), before)
    assert not same(weights(other.trainer.distillation.averaged.model), before)


class Tied(torch.nn.Module):
    """A network of two layers with one weight, and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.register_buffer("steps", torch.zeros(()), persistent=False)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return torch.relu(self.second(torch.relu(self.first(x))))


def test_a_shared_weight_is_averaged_once():
    learner = averaging(net=Tied())
    learner.prepare((6,), torch.float32)
    before = learner.trainer.distillation.averaged.model.body.first.weight.clone()
    learner.learn(*batch(0))
    after = learner.model.body.first.weight
    expected = before + 0.5 * (after - before)  # the first update goes half way
    torch.testing.assert_close(
        learner.trainer.distillation.averaged.model.body.first.weight, expected
    )


def test_other_buffers_are_copied_from_the_network():
    """The mean of a count is meaningless, and a mask of infinities has none."""
    learner = averaging(net=Tied())
    learner.learn(*batch(0))
    followed = learner.trainer.distillation.averaged.model.body
    assert float(followed.steps) == 1
    assert torch.equal(followed.mask, torch.tensor([0.0, -torch.inf]))
