"""Tests the trainer: a method's modules, notified parts, gradients and their strides, generators,
growth and saving."""

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from label_vectors import TASKS, batch, made, register, reopened, teach
from torch import nn

from onepass import ER, Finetune
from onepass.base.parts import Samples, StatefulPart, Step
from onepass.base.seeds import generator
from onepass.learning.trainer import Trainer, Training
from onepass.nets import FIRST_CAPACITY, CosineHead, Head, build


class Sum(nn.Module):
    """Adds the logits of a network's two heads."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return sum(both(self.net, x))


def both(net, inputs):
    features = net.body(inputs)
    return net.head(features), net.second(features)


@dataclass(kw_only=True, eq=False)
class Twofold(Finetune):
    """A learner that trains a further module and scores with both."""

    def extra_modules(self, features, rng):
        return {"second": build(lambda: nn.Linear(features, 16), rng)}

    def step(self, x, y):
        logits = torch.stack(both(self.model, self.views(x)))
        loss = sum(F.cross_entropy(logit[:, : len(self.classes)], y) for logit in logits)
        self.descend(loss)
        return Step.of(loss)

    def scorer(self):
        return Sum(self.trainer.eval_model)


@dataclass(kw_only=True, eq=False)
class Cosine(Finetune):
    """A learner with a cosine head."""

    def make_head(self, features, rng):
        return CosineHead(features, 16, rng, scale=5.0)


class Diary(StatefulPart):
    """A part that logs its notifications."""

    def __init__(self):
        self.pages = []

    def grow(self, capacity):
        self.pages.append(("grow", capacity))

    def classes_are(self, seen, new):
        self.pages.append(("classes", int(seen.sum()), int(new.sum()), len(seen)))

    def new_task(self):
        self.pages.append(("task",))

    def follow(self):
        self.pages.append(("follow",))


class Counter(StatefulPart):
    """A part with a tensor that counts optimiser steps, and one that is not saved."""

    tensors = ("updates",)

    def __init__(self):
        self.updates, self.other = torch.zeros(()), torch.zeros(())

    def follow(self):
        self.updates += 1
        self.other += 1


@dataclass(kw_only=True, eq=False)
class TwoParts(Finetune):
    """A learner with two parts, and an attribute that is not a part."""

    def build(self, shape, dtype):
        self.diary, self.counter, self.plain = Diary(), Counter(), torch.zeros(3)

    def step(self, x, y):
        self.late = Diary()  # too late to become a part
        return super().step(x, y)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    register(monkeypatch, Twofold, Cosine, TwoParts)


# ---- further modules


@pytest.mark.parametrize("optimizer", ["adam", "nesterov"])
def test_a_methods_module_trains_and_is_saved(optimizer, tmp_path):
    learner = made(Twofold, optimizer=optimizer, lr=1e-2)
    learner.prepare((6,), torch.float32)
    begun = learner.model.second.weight.detach().clone()
    teach(learner, [0, 1, 2])
    assert not torch.equal(learner.model.second.weight, begun)
    assert {"second.weight", "second.bias"} <= set(learner.state_dict()["model"])

    again = reopened(learner, tmp_path)
    assert torch.equal(again.model.second.weight, learner.model.second.weight)
    x, _ = batch([0, 1, 2])
    assert torch.equal(again.scores(x), learner.scores(x))
    for either in (learner, again):
        teach(either, [1, 2, 3])
    assert again.state_sha256() == learner.state_sha256()


def test_a_methods_module_is_in_the_fingerprint():
    learner = made(Twofold)
    teach(learner, [0, 1])
    before = learner.params_sha256()
    with torch.no_grad():
        learner.model.second.bias[0] += 1
    assert learner.params_sha256() != before


def test_a_methods_module_can_score_too():
    learner = made(Twofold)
    teach(learner, [3, 5])
    x, _ = batch([3, 5])
    with torch.no_grad():
        expected = sum(both(learner.model, x))[:, :2]
    assert torch.equal(learner.scores(x), expected)


# ---- a method's own head


@pytest.mark.parametrize("head", ["trained", "frozen"])
def test_a_learner_with_its_own_head_learns_grows_and_is_saved(head, tmp_path):
    learner = made(Cosine, lr=1e-2, head=head)
    bias = None
    for first in (0, 10):
        learner.new_task()
        for seed in range(20):
            learner.learn(*batch(list(range(first, first + 10)), seed))
        bias = learner.model.head.bias.detach().clone() if bias is None else bias
    assert type(learner.model.head) is CosineHead
    assert learner.model.head.capacity == 32
    assert torch.equal(learner.model.head.bias[:16], bias)
    x, y = batch(list(range(10, 20)), seed=99)
    scores = learner.scores(x)
    assert bool((scores.abs() <= 5 + 1e-5).all())
    if head == "trained":
        assert (learner.predict(x) >= 10).all()
    again = reopened(learner, tmp_path)
    assert torch.equal(again.scores(x), scores)
    for either in (learner, again):
        either.learn(x, y)
    assert again.state_sha256() == learner.state_sha256()


# ---- parts


def test_parts_are_the_attributes_of_that_type_after_build():
    learner = teach(made(TwoParts), [0, 1])
    assert learner.trainer.parts == {"diary": learner.diary, "counter": learner.counter}
    assert learner.late.pages == []


def test_a_part_is_notified_of_classes_tasks_growth_and_steps_in_order():
    learner = made(TwoParts)
    for labels in (TASKS[0], list(range(20))):
        learner.new_task()
        teach(learner, labels, times=2)
    assert learner.diary.pages == [
        ("classes", 2, 2, 16),
        ("follow",),
        ("follow",),
        ("task",),
        ("classes", 2, 0, 16),
        ("grow", 32),
        ("classes", 20, 18, 32),
        ("follow",),
        ("follow",),
    ]


def test_a_part_is_notified_after_the_update():
    found = []

    class Looking(StatefulPart):
        def __init__(self, learner):
            self.learner = learner

        def follow(self):
            found.append(self.learner.model.head.weight.detach().clone())

    @dataclass(kw_only=True, eq=False)
    class Looked(Finetune):
        def build(self, shape, dtype):
            self.looking = Looking(self)

    learner = made(Looked, weight_decay=0.5)
    learner.prepare((6,), torch.float32)
    born = learner.model.head.weight.detach().clone()
    for labels in TASKS:
        learner.learn(*batch(labels))
        assert torch.equal(found[-1], learner.model.head.weight)
        assert torch.equal(found[-1][6:], born[6:]), "spare rows are reset before the notification"
    assert len(found) == 3


def test_a_part_saves_the_tensors_it_names(tmp_path):
    learner = teach(made(TwoParts), [0, 1])
    assert set(learner.state_dict()["parts"]) == {"counter"}, "a part without tensors is left out"
    again = reopened(learner, tmp_path)
    assert float(again.counter.updates) == 3
    assert float(again.counter.other) == 0
    teach(again, [0, 1])
    assert float(again.counter.updates) == 6


def test_a_deep_copy_of_a_learner_has_its_own_parts():
    learner = teach(made(TwoParts), [0, 1])
    other = copy.deepcopy(learner)
    assert other.trainer.parts["counter"] is other.counter is not learner.counter
    teach(other, [0, 1])
    assert float(learner.counter.updates) == 3
    assert float(other.counter.updates) == 6


# ---- steps


@pytest.mark.parametrize("largest", [0.01, 1.0, 1e6])
def test_gradients_are_clipped_as_by_torch(largest):
    free, cut = (
        made(Finetune, optimizer="sgd", lr=1.0, weight_decay=0.0, augment="none") for _ in range(2)
    )
    x, y = batch([0, 1, 2])
    for either in (free, cut):
        either.prepare((6,), torch.float32)
        either.trainer.add_rows(0, 16)
    born = [parameter.detach().clone() for parameter in free.trainer.trainable]
    gradients = free.trainer.gradients(F.cross_entropy(free.model(x), y))
    norm = torch.cat([value.flatten() for value in gradients]).norm()
    cut.trainer.optimise(F.cross_entropy(cut.model(x), y), largest_gradient=largest)
    scale = min(1.0, largest / float(norm))
    for before, gradient, after in zip(born, gradients, cut.trainer.trainable, strict=True):
        torch.testing.assert_close(after.detach(), before - scale * gradient, atol=1e-6, rtol=1e-4)


def test_a_gradient_with_other_strides_makes_the_same_update():
    """Fused optimisers require equal strides."""

    def prepared():
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(0.1)
        learner = made(Finetune, net=net, optimizer="sgd", lr=1.0, weight_decay=0.0)
        learner.prepare((3, 6, 6), torch.uint8)
        learner.model.to(memory_format=torch.channels_last)
        return learner

    ends = []
    for form in (torch.channels_last, torch.contiguous_format):
        learner = prepared()
        gradients = [
            torch.arange(float(p.numel())).view(p.shape) for p in learner.trainer.trainable
        ]
        formed = [g.contiguous(memory_format=form) if g.ndim == 4 else g for g in gradients]
        learner.trainer.descend_along(formed)
        ends.append(learner.model.body[0].weight.detach().clone())
    assert torch.equal(*ends)
    assert torch.allclose(ends[0], 0.1 - torch.arange(108.0).view(4, 3, 3, 3))


def test_frozen_parameters_are_not_trainable():
    body = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    body[0].requires_grad_(False)
    learner = made(Finetune, net=body)
    learner.prepare((6,), torch.float32)
    names = [
        name for name, parameter in learner.model.named_parameters() if parameter.requires_grad
    ]
    assert names == ["body.1.weight", "body.1.bias", "head.weight", "head.bias"]
    trainable = learner.trainer.trainable
    assert [parameter.shape for parameter in trainable] == [(3, 4), (3,), (16, 3), (16,)]
    groups = learner.trainer.optimizer.param_groups
    taken = {id(value) for group in groups for value in group["params"]}
    assert taken == {id(parameter) for parameter in trainable}


def test_each_row_counts_the_steps_since_its_class_arrived():
    """This includes growth: the first capacity is 16."""
    learner = made(Finetune, net="mlp")
    x = torch.rand(20, 6, generator=torch.Generator().manual_seed(0))
    for labels in (range(2), range(2), range(2, 4), range(20)):
        learner.learn(x[: len(labels)], list(labels))
    head, state = learner.model.head, learner.trainer.optimizer.state
    counts = state[head.trainable[0]]["count"]
    assert counts[:20].tolist() == [4, 4, 2, 2] + [1] * 16


# ---- a trainer without a learner


def a_trainer(**more):
    settings = Training(device="cpu", seed=4, net="mlp", optimizer="sgd", lr=0.1)
    return Trainer(settings, (6,), torch.float32, **more)


def test_a_trainer_alone_has_a_linear_head_and_generators_from_the_seed():
    trainer = a_trainer()
    assert type(trainer.model.head) is Head
    assert trainer.model.head.capacity == FIRST_CAPACITY
    assert trainer.parts == {}
    assert set(trainer.rngs) == {"initialisation", "draws", "augmentation"}
    assert trainer.capture_seconds == 0
    for name in ("draws", "augmentation"):
        expected = generator(4, name).get_state()
        assert torch.equal(trainer.rngs[name].get_state(), expected)
    twin = a_trainer()
    for first, second in zip(trainer.trainable, twin.trainable, strict=True):
        assert torch.equal(first, second)


def test_given_generators_are_used_and_one_may_serve_several_purposes():
    rng = torch.Generator().manual_seed(7)
    trainer = a_trainer(rngs={"initialisation": rng, "draws": rng, "augmentation": rng})
    assert trainer.views.rng is trainer.rngs["draws"] is rng
    fresh = torch.Generator().manual_seed(7)
    assert not torch.equal(rng.get_state(), fresh.get_state()), "the network was drawn from it"
    again = a_trainer(rngs={"initialisation": fresh, "draws": fresh, "augmentation": fresh})
    for first, second in zip(trainer.trainable, again.trainable, strict=True):
        assert torch.equal(first, second)


def test_masks_of_rows_follow_classes_and_tasks():
    trainer = a_trainer()

    def rows():
        masks = (trainer.seen, trainer.new, trainer.old)
        return [mask.nonzero().flatten().tolist() for mask in masks]

    assert rows() == [[], [], []]
    trainer.add_rows(0, 2)
    assert rows() == [[0, 1], [0, 1], []]
    trainer.new_task()
    assert rows() == [[0, 1], [], [0, 1]]
    trainer.add_rows(2, 40)
    assert rows() == [list(range(40)), list(range(2, 40)), [0, 1]]
    assert len(trainer.seen) == len(trainer.new) == len(trainer.old) == 64
    assert trainer.model.head.capacity == 64
    assert trainer.model.head.free.nonzero().flatten().tolist() == list(range(40))


def test_a_step_ends_after_its_batch_is_stored():
    learner = made(ER, memory=5)
    learner.prepare((6,), torch.float32)
    learner.trainer.add_rows(0, 2)
    x, y = batch([0, 1])

    def step(x, y):
        learner.keep(x, y)
        return Step.of(torch.zeros(()))

    learner.trainer.run(step, x, y)
    assert learner.store.draw(2, Samples(x, y, torch.ones(2))).weight.tolist() == [1, 1]


# ---- generators of another kind of device


def test_a_step_flushes_subnormal_numbers():
    """A step on Split-MNIST took four times as long when a thousand subnormal numbers had
    appeared."""
    trainer, seen = a_trainer(), []

    def step(x, y):
        seen.append(float(torch.tensor(1e-39) * 1))
        return Step(torch.zeros(()), {}, ())

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trainer.run(step, torch.zeros(1, 6), torch.zeros(1))
    torch.set_num_threads(threads)
    assert seen == [0]
    assert float(torch.tensor(1e-39) * 1) > 0


def test_a_state_from_another_kind_of_device_resumes_with_new_random_numbers():
    """They cannot equal those of the other device, but they are repeatable and depend on the
    step."""
    learner = teach(made(ER, memory=5), [0, 1])
    states, found = [learner.state_dict()], []
    learner.learn(*batch([0, 1], seed=9))
    states.append(learner.state_dict())
    for state in (*states, states[-1]):
        elsewhere = copy.deepcopy(state)
        for name in ("draws", "augmentation"):
            elsewhere["generators"][name] = {"device": "cuda", "state": torch.zeros(16).byte()}
        other = made(ER, memory=5)
        other.load_state_dict(elsewhere)
        drawn = [
            torch.rand(3, generator=other.trainer.rngs[name]).tolist()
            for name in other.trainer.rngs
        ]
        assert len({str(value) for value in drawn}) == 3
        found.append(drawn)
        initial = torch.Generator()
        initial.set_state(state["generators"]["initialisation"]["state"])
        assert drawn[0] == torch.rand(3, generator=initial).tolist(), "this one is of the host"
    assert found[1] == found[2]
    assert found[0][1:] != found[1][1:]
