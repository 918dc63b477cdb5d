"""Tests the vocabulary of a step: samples, gradients, the memory, and the order of keep and
descend."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from label_vectors import TASKS, batch, made, teach
from torch import nn

from onepass import ER, Finetune
from onepass.base.parts import Samples, Step
from onepass.functional.losses import cross_entropy
from onepass.memory import Reservoir


@dataclass(kw_only=True, eq=False)
class InTwo(Finetune):
    """Fine-tuning that computes gradients first and applies them afterwards."""

    def step(self, x, y):
        (new,) = self.forward(Samples.of(x, y))
        loss = cross_entropy(new, among=self.seen)
        self.trainer.descend_along(self.trainer.gradients(loss))
        return Step.of(loss, new)


@dataclass(kw_only=True, eq=False)
class Replaying(ER):
    """Experience replay that draws, keeps and descends in a chosen order."""

    order: str = "keep, descend"

    def step(self, x, y):
        stream = Samples.of(x, y)
        replay = self.store.draw(self.replay, fallback=stream)
        stream_out, replay_out = self.forward(stream, replay)
        loss = cross_entropy(stream_out, self.seen) + cross_entropy(replay_out, self.seen)
        does = {
            "keep": lambda: self.keep(x, y),
            "descend": lambda: self.descend(loss),
            "descend along": lambda: self.trainer.descend_along(self.trainer.gradients(loss)),
            "draw": lambda: self.store.draw(self.replay, fallback=stream),
        }
        for what in self.order.split(", "):
            does[what]()
        return Step.of(loss, stream_out, replay_out)


class Normed(nn.Module):
    """A network whose features depend on mode and precision."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        source = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1, 1, generator=source)

    def forward(self, x):
        return torch.relu(self.norm(self.layer(x)))


# ---- gradients, then a step along them


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "nesterov"])
@pytest.mark.parametrize("head", ["trained", "frozen"])
def test_descend_along_equals_descend_bit_for_bit(optimizer, head):
    ends = []
    for method in (Finetune, InTwo):
        learner = made(method, optimizer=optimizer, head=head)
        for labels in TASKS:
            learner.new_task()
            teach(learner, labels, times=4)
        ends.append(learner.state_sha256())
    assert ends[0] == ends[1]


def test_a_parameter_that_the_loss_does_not_use_has_a_zero_gradient():
    @dataclass(kw_only=True, eq=False)
    class Beside(Finetune):
        def extra_modules(self, features, rng):
            return {"second": nn.Linear(features, 16)}

    learner = made(Beside)
    teach(learner, [0, 1])
    x, y = batch([0, 1])
    found = learner.trainer.gradients(F.cross_entropy(learner.model(x), y))
    names = [
        name for name, parameter in learner.model.named_parameters() if parameter.requires_grad
    ]
    assert [value.shape for value in found] == [
        parameter.shape for parameter in learner.trainer.trainable
    ]
    silent = {name for name, value in zip(names, found, strict=True) if not value.any()}
    assert silent == {"second.weight", "second.bias"}


def test_gradients_returns_gradients_and_sets_none():
    learner = teach(made(Finetune), [0, 1])
    for parameter in learner.trainer.trainable:
        parameter.grad = None
    before = learner.state_sha256()
    x, y = batch([0, 1])
    learner.trainer.gradients(F.cross_entropy(learner.model(x), y))
    assert all(value.grad is None for value in learner.model.parameters())
    assert learner.state_sha256() == before


def test_too_few_gradients_are_an_error():
    learner = made(Finetune)
    teach(learner, [0, 1])
    with pytest.raises(ValueError, match="shorter"):
        learner.trainer.descend_along(
            [torch.zeros_like(parameter) for parameter in learner.trainer.trainable[:-1]]
        )


# ---- keep and descend


@pytest.mark.parametrize("descend", ["descend", "descend along"])
def test_a_draw_before_descend_does_not_return_the_kept_batch(descend):
    ends = set()
    for order in (f"keep, draw, {descend}", f"draw, keep, {descend}"):
        learner = made(Replaying, memory=5, replay=4, order=order)
        for labels in TASKS:
            teach(learner, labels, times=4)
        ends.add(learner.state_sha256())
    assert len(ends) == 1


@pytest.mark.parametrize("descend", ["descend", "descend along"])
def test_the_memory_can_be_drawn_from_before_and_after(descend):
    learner = made(Replaying, memory=5, replay=4, order=f"draw, keep, {descend}, draw")
    teach(learner, [0, 1], times=4)
    assert int(learner.store.offered) == 8
    assert len(learner.store.draw(3, Samples.of(*batch([0]))).y) == 3


def test_keeping_before_or_after_descend_is_equal_bit_for_bit():
    orders = ("keep, descend", "descend, keep", "keep, descend along")
    ends = set()
    for order in orders:
        learner = made(Replaying, memory=5, replay=4, order=order)
        for labels in TASKS:
            teach(learner, labels, times=4)
        ends.add(learner.state_sha256())
    assert len(ends) == 1


def test_a_step_that_only_keeps_stores_the_batch():
    learner = made(Replaying, memory=5, replay=4, order="keep")
    teach(learner, [0, 1])
    assert int(learner.store.size) == 5


@pytest.mark.parametrize("stop", [1, 4])
def test_a_step_that_fails_after_keep_does_not_block_the_memory(stop, monkeypatch):
    learner = made(Replaying, memory=5, replay=4)
    teach(learner, [0, 1], times=stop)

    def fail(loss):
        raise KeyboardInterrupt

    monkeypatch.setattr(learner.trainer, "optimise", fail)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(*batch([0, 1]))
    monkeypatch.undo()
    learner.learn(*batch([0, 1]))
    assert learner.steps == stop + 1


def test_keep_takes_a_memory_and_its_fields():
    @dataclass(kw_only=True, eq=False)
    class Two(Finetune):
        def build(self, shape, dtype):
            self.store = Reservoir(20, shape, dtype, self.trainer.rngs["draws"])
            fields = {"step": torch.tensor(0)}
            self.second = Reservoir(20, shape, dtype, self.trainer.rngs["draws"], fields)

        def step(self, x, y):
            self.keep(x[:1], y[:1])
            self.keep(x, y, store=self.second, step=torch.full_like(y, self.steps))
            return super().step(x, y)

    learner = teach(made(Two), [3, 4, 5])
    assert learner.store.y[: int(learner.store.size)].tolist() == [0] * 3
    assert learner.second.y[: int(learner.second.size)].tolist() == [0, 1, 2] * 3
    assert learner.second.fields["step"][:9].tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert torch.equal(learner.second.x[:3], batch([3, 4, 5])[0])


# ---- samples, features, rows


def test_stream_samples_all_have_weight_1():
    x, y = batch([0, 1, 2])
    samples = Samples.of(x, y)
    assert samples.x is x and samples.y is y
    assert samples.weight.tolist() == [1, 1, 1]
    assert samples.weight.dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_features_come_from_unaugmented_samples_in_evaluation_mode(precision):
    learner = made(Finetune, net=Normed(), precision=precision, mean=(0.5,), std=(2.0,))
    teach(learner, [0, 1, 2])
    before = learner.state_sha256()
    x, _ = batch([0, 1, 2] * 300)  # more than one piece
    found = learner.trainer.features_of(x)
    assert found.dtype == torch.float32 and not found.requires_grad
    assert found.shape == (900, 8)
    expected = learner.trainer.eval_model.features((x - 0.5) / 2).float().detach()
    torch.testing.assert_close(found, expected)
    alone = learner.trainer.features_of(x[:1])
    torch.testing.assert_close(alone, found[:1])
    assert learner.state_sha256() == before
    assert all(module.training for module in learner.model.modules())


def test_rows_are_new_until_the_boundary_and_old_afterwards():
    learner = made(Finetune)
    for task, labels in enumerate(TASKS):
        learner.new_task()
        teach(learner, labels, times=1)
        rows = range(16)
        assert learner.seen.tolist() == [row < 2 * task + 2 for row in rows]
        assert learner.new.tolist() == [2 * task <= row < 2 * task + 2 for row in rows]
        assert learner.old.tolist() == [row < 2 * task for row in rows]
