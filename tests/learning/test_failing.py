"""A step that fails changes nothing: not the classes, not the memory, not a generator, and not the
statistics that the network had moved by then. Wherever it fails, and with every method."""

from itertools import count

import pytest
import torch
from torch import nn

import onepass
from onepass import InputError
from onepass.learning import registry

METHODS = [info.key for info in registry.methods()]
REPLAYING = {"replay": 4, "mix": 4, "current": 2, "candidates": 6, "pool": 4, "subsets": 2}
FIRST = [[0, 1, 0, 1], [1, 0], [0, 1, 1], [1, 0, 0]]
# after the three last of these, which are quiet, an unseen class begins a task
BATCHES = {
    "known classes": (9, [1, 0, 1]),
    "a class that is new": (9, [1, 7, 7]),
    "classes for which the head grows": (9, list(range(20))),
    "a class after a boundary": (2, [1, 7, 7]),
}


class Boom(Exception):
    """What the network raises."""


class Fuse:
    """Burns at one of the times that the network is asked for features or for a gradient, and is
    burnt from then on: whoever undoes a step must not ask the network either."""

    def __init__(self):
        self.count, self.burns_at = 0, None

    def tick(self, *_):
        self.count += 1
        if self.burns_at is not None and self.count >= self.burns_at:
            raise Boom

    def lay(self, burns_at):
        self.count, self.burns_at = 0, burns_at


FUSE = Fuse()


class Fragile(nn.Module):
    """Its norms have moved when its fuse burns, and both kinds of calls are counted."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.norm, self.last = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        source = torch.Generator().manual_seed(5)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=source)

    def forward(self, x):
        hidden = torch.relu(self.norm(self.first(x)))
        FUSE.tick()
        features = torch.relu(self.last(self.second(hidden)))
        if self.training and features.requires_grad:
            features.register_hook(FUSE.tick)
        return features


@pytest.fixture(autouse=True)
def no_fuse():
    FUSE.lay(None)
    yield
    FUSE.lay(None)


def batch(labels, seed=0):
    source = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)
    return y.view(-1, 1) + torch.randn(len(y), 6, generator=source), y


def taught(key, gap=9, net=None, **settings):
    kind = registry.get(key).learner
    small = {"memory": 12, **REPLAYING, **dict.fromkeys(kind.quick, 1)}
    chosen = {name: value for name, value in small.items() if name in kind.setting_names()}
    learner = kind(net=net or Fragile(), gap=gap, device="cpu", seed=1, **chosen, **settings)
    for seed, labels in enumerate(FIRST):
        learner.learn(*batch(labels, seed))
    return learner


def failures(learner, call):
    """Lets `call` fail at every time that it asks the network, one after the other, until it ends;
    says how often it failed."""
    before, spent = learner.state_sha256(), dict(learner.spent)
    for burns_at in range(1, 99):
        FUSE.lay(burns_at)
        try:
            call()
        except Boom:
            assert learner.state_sha256() == before, f"failing at {burns_at} left a trace"
            assert learner.spent == spent
        else:
            FUSE.lay(None)
            return burns_at - 1
    raise AssertionError("it never ends")


@pytest.mark.parametrize("key", METHODS)
@pytest.mark.parametrize("kind", BATCHES)
def test_a_step_that_fails_changes_nothing_wherever_it_fails(key, kind):
    gap, labels = BATCHES[kind]
    learner, calm = taught(key, gap), taught(key, gap)
    x, y = batch(labels, seed=9)
    failed = failures(learner, lambda: learner.learn(x, y))
    assert failed >= (0 if key == "gdumb" else 2), "a forward and a backward at least"
    calm.learn(x, y)
    assert learner.state_sha256() == calm.state_sha256(), "what failed shows later"
    for one in (learner, calm):
        one.learn(*batch([0, 1, 0], seed=10))
    assert learner.state_sha256() == calm.state_sha256()


SELF_TAUGHT = {"average": 0.9, "distil": 1.0, "distil_raw": True, "repeats": 2}


@pytest.mark.parametrize("key", ["finetune", "gsa", "aser", "mir", "bic"])
def test_a_step_that_fails_in_a_repeat_changes_nothing_wherever_it_fails(key):
    learner, calm = (taught(key, **SELF_TAUGHT) for _ in range(2))
    x, y = batch([1, 0, 1], seed=9)
    failed = failures(learner, lambda: learner.learn(x, y))
    assert failed >= 2 * 4, "network, average, network again, gradients, and all of it twice"
    calm.learn(x, y)
    assert learner.state_sha256() == calm.state_sha256(), "what failed shows later"
    for one in (learner, calm):
        one.learn(*batch([0, 1, 0], seed=10))
    assert learner.state_sha256() == calm.state_sha256()


def interrupted_in_repeat(learner, turn, monkeypatch):
    """Ctrl-C when a step of the learner has moved the network and the next one has begun."""
    step, turns = learner.step, count()

    def interrupted(x, y):
        if next(turns) == turn:
            raise KeyboardInterrupt
        return step(x, y)

    monkeypatch.setattr(learner, "step", interrupted)


REPEATING = [key for key in METHODS if "repeats" not in registry.get(key).learner.cannot]


@pytest.mark.parametrize("optimizer", ["adam", "nesterov", "sgd"])
@pytest.mark.parametrize("turn", [1, 2])
def test_an_interrupt_between_repeats_changes_nothing_in_a_network_of_ours(
    optimizer, turn, monkeypatch
):
    both = {"average": "arrivals", "distil": 1.0, "distil_from": "growing", "repeats": 3}
    learner, calm = (taught("gsa", net="mlp", optimizer=optimizer, **both) for _ in range(2))
    x, y = batch([1, 0, 1], seed=9)
    before, answers = learner.state_sha256(), learner.scores(x)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted_in_repeat(learner, turn, patch)
        learner.learn(x, y)
    assert learner.state_sha256() == before
    assert torch.equal(learner.scores(x), answers)
    for one in (learner, calm):
        one.learn(x, y)
        one.learn(*batch([0, 7, 0], seed=10))
    assert learner.state_sha256() == calm.state_sha256()


@pytest.mark.parametrize("key", REPEATING)
def test_an_interrupt_between_repeats_changes_nothing_with_any_method(key, monkeypatch):
    learner = taught(key, net="mlp", repeats=2, average=0.9)
    before, (x, y) = learner.state_sha256(), batch([1, 0, 1], seed=9)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted_in_repeat(learner, 1, patch)
        learner.learn(x, y)
    assert learner.state_sha256() == before


def test_no_network_is_copied_for_a_step_that_is_not_repeated():
    once, twice = (taught("er", net="mlp", repeats=repeats) for repeats in (1, 2))
    assert not once.trainer._held
    assert twice.trainer._held


def test_repeats_alone_are_no_reason_to_copy_the_whole_learner():
    """The memory is not written between them: what the trainer holds will do."""
    assert not taught("er", repeats=2).trainer.may_fail_late
    assert taught("gss", repeats=2).trainer.may_fail_late, "it asks after it has moved the network"


def test_an_augmentation_that_fails_in_a_repeat_changes_nothing_in_a_network_of_ours():
    calls = []

    def fragile(x, rng):
        calls.append(1)
        if len(calls) == 10:  # the second of the two on the fifth batch
            raise Boom
        return x + torch.rand(x.shape, generator=rng)

    learner = taught("er", net="mlp", augment=fragile, repeats=2)
    before, (x, y) = learner.state_sha256(), batch([1, 0, 1], seed=9)
    trainer = learner.trainer
    with pytest.raises(Boom):
        learner.learn(x, y)
    assert learner.state_sha256() == before
    assert trainer.begins, "whatever is done next is not the rest of a batch"
    assert trainer.lets_in
    learner.learn(x, y)
    calls.clear()
    calm = taught("er", net="mlp", augment=fragile, repeats=2)
    calls.clear()
    calm.learn(x, y)
    assert learner.state_sha256() == calm.state_sha256()


@pytest.mark.parametrize("key", ["scr", "rainbow-rt"])
@pytest.mark.parametrize("how", ["end_task", "new_task"])
def test_a_task_whose_end_fails_has_not_ended(key, how):
    learner, calm = taught(key), taught(key)
    for one in (learner, calm):  # the second time rainbow asks the network
        one.new_task()
        one.learn(*batch([2, 3, 2, 3], seed=8))
    assert failures(learner, getattr(learner, how)) >= 2
    getattr(calm, how)()
    assert learner.state_sha256() == calm.state_sha256()


def test_one_sample_that_batchnorm_cannot_take_changes_nothing():
    learner = taught("finetune")
    before = learner.state_sha256()
    for labels in ([0], [7]):
        with pytest.raises(InputError, match="batches of two or more"):
            learner.learn(*batch(labels))
        assert learner.state_sha256() == before
    assert learner.classes == [0, 1]


@pytest.mark.parametrize("key", METHODS)
def test_learning_needs_no_gradients_of_the_caller_but_cannot_be_in_inference_mode(key):
    free, inside = taught(key, net="mlp"), taught(key, net="mlp")
    x, y = batch([0, 1, 7], seed=9)
    for mode in (torch.enable_grad(), torch.no_grad()):
        learner = free if isinstance(mode, torch.enable_grad) else inside
        with mode:
            learner.learn(x, y)
            learner.end_task()
            learner.new_task()
    assert inside.state_sha256() == free.state_sha256()

    free.learn(x, y)  # so that a task can end
    before, predicted = free.state_sha256(), free.predict(x)
    with torch.inference_mode():
        for call in (lambda: free.learn(x, y + 9), free.end_task, free.new_task):
            with pytest.raises(InputError, match=r"inside torch\.inference_mode\(\)"):
                call()
        assert free.state_sha256() == before
        assert torch.equal(free.predict(x), predicted)
        assert torch.equal(free.snapshot().predict(x), predicted)
        made = torch.ones(3, 6)
    assert bool(torch.isfinite(free.learn(made, y).loss)), "what was made there can be learned"


def test_what_is_opened_in_inference_mode_goes_on_learning(tmp_path):
    learner = taught("gsa", net="mlp")
    learner.save(tmp_path / "learner.pt")
    with torch.inference_mode():
        opened = onepass.open(tmp_path / "learner.pt", device="cpu")
        opened.predict(batch([0])[0])
    for one in (learner, opened):
        one.learn(*batch([0, 1, 7]))
    assert opened.state_sha256() == learner.state_sha256()
