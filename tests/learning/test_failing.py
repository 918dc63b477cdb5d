"""Tests steps that fail. Before the optimiser's update, a failure changes nothing: not the classes,
the memory, the generators, nor the running statistics. After it, the learner predicts, but neither
learns on nor is saved."""

import pytest
import torch
from network_methods import NETWORK_METHODS
from torch import nn

import onepass
from onepass import InputError, TrainingError
from onepass.base.settings import setting_names
from onepass.learning import registry
from onepass.learning.execution import WARM_UP, GraphEngine
from onepass.learning.memory_contents import stores_of
from onepass.learning.trainer import Trainer
from onepass.nets import optimisers

REPEATING = [
    key for key in NETWORK_METHODS if "repeats" not in registry.get(key).learner.traits.unsupported
]
REPLAYING = {"replay": 4, "mix": 4, "current": 2, "candidates": 6, "pool": 4, "subsets": 2}
SELF_TAUGHT = {"average": 0.9, "distil": 1.0, "distil_raw": True, "repeats": 2}
FIRST = [[0, 1, 0, 1], [1, 0], [0, 1, 1], [1, 0, 0]]
# the last three are quiet, so that the next unseen class begins a task
BATCHES = {
    "known classes": (9, [1, 0, 1]),
    "a class that is new": (9, [1, 7, 7]),
    "classes for which the head grows": (9, list(range(20))),
    "a class after a boundary": (2, [1, 7, 7]),
}


class Boom(Exception):
    """The error of a failing step."""


class Fuse:
    """A call counter that raises once, at the chosen call, and never again: undoing a step must not
    run the network. `moved` is whether the optimiser had begun its update by then."""

    def __init__(self):
        self.lay(None)

    def lay(self, burns_at):
        self.count, self.burns_at, self.moved = 0, burns_at, False

    def tick(self, *_):
        self.count += 1
        if self.burns_at is not None and self.count >= self.burns_at:
            raise Boom


FUSE = Fuse()


class Fragile(nn.Module):
    """A network that raises in a forward or backward pass, after its norms have updated."""

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
def fuses_everywhere(monkeypatch):
    """Puts fuses before the step, at the loss, in the middle of the optimiser's update, and where
    memories take a batch."""
    kind = onepass.NetworkLearner
    once, descend = Trainer.run_once, kind.descend

    def before_the_step(self, step, x, y):
        FUSE.tick()
        return once(self, step, x, y)

    def after_the_loss(self, loss):
        FUSE.tick()
        descend(self, loss)

    def in_the_optimiser(self, *arguments, **named):
        FUSE.moved = True
        adam(self, *arguments, **named)
        FUSE.tick()

    def after_the_rows(self, *arguments):
        move_rows(self, *arguments)
        FUSE.tick()

    adam, move_rows = optimisers.Adam._adam, optimisers.Adam._move_rows
    monkeypatch.setattr(Trainer, "run_once", before_the_step)
    monkeypatch.setattr(kind, "descend", after_the_loss)
    monkeypatch.setattr(optimisers.Adam, "_adam", in_the_optimiser)
    monkeypatch.setattr(optimisers.Adam, "_move_rows", after_the_rows)
    FUSE.lay(None)
    yield
    FUSE.lay(None)


def fuse_memories(learner):
    for store in stores_of(learner):

        def add(*arguments, add=store.add, **fields):
            FUSE.tick()
            add(*arguments, **fields)
            FUSE.tick()

        store.add = add


def batch(labels, seed=0):
    source = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)
    return y.view(-1, 1) + torch.randn(len(y), 6, generator=source), y


def taught(key, gap=9, net=None, batches=FIRST, **settings):
    kind = registry.get(key).learner
    small = {"memory": 12, **REPLAYING, **dict.fromkeys(kind.traits.quick, 1)}
    chosen = {name: value for name, value in small.items() if name in setting_names(kind)}
    learner = kind(net=net or Fragile(), gap=gap, device="cpu", seed=1, **chosen, **settings)
    for seed, labels in enumerate(batches):
        learner.learn(*batch(labels, seed))
    return learner


def outcomes(key, labels, gap=9, **settings):
    """Makes a step fail at each fuse in turn, until it succeeds. Yields the learner, its state and
    scores before, and whether the optimiser had begun."""
    for burns_at in range(1, 99):
        learner = taught(key, gap, **settings)
        fuse_memories(learner)
        before = learner.state_sha256(), learner.scores(batch([0, 1])[0])
        FUSE.lay(burns_at)
        try:
            learner.learn(*batch(labels, seed=9))
        except Boom:
            moved = FUSE.moved
            FUSE.lay(None)
            yield learner, before, moved
        else:
            FUSE.lay(None)
            return
    raise AssertionError("it never ends")


def expect_unfinished(learner, tmp_path):
    """Checks that the learner predicts, does not learn on, and does not overwrite a file."""
    path = tmp_path / "last.pt"
    path.write_bytes(b"the last checkpoint")
    x, y = batch([0, 1, 0])
    assert learner.scores(x).shape == (3, len(learner.classes))
    assert torch.equal(learner.snapshot().predict(x), learner.predict(x))
    calls = (
        lambda: learner.learn(x, y),
        learner.end_task,
        learner.new_task,
        lambda: learner.save(path),
        learner.state_dict,
    )
    for call in calls:
        with pytest.raises(TrainingError, match=r"unfinished.* reopen .* onepass\.open"):
            call()
    assert path.read_bytes() == b"the last checkpoint"


@pytest.mark.parametrize("key", NETWORK_METHODS)
@pytest.mark.parametrize("kind", ["known classes", "a class that is new"])
def test_a_step_that_fails_before_the_update_changes_nothing(key, kind, tmp_path):
    gap, labels = BATCHES[kind]
    calm, early, late = taught(key, gap), 0, 0
    calm.learn(*batch(labels, seed=9))
    for learner, (state, scores), moved in outcomes(key, labels, gap):
        early, late = early + (not moved), late + moved
        if moved:
            expect_unfinished(learner, tmp_path)
            continue
        assert learner.state_sha256() == state
        if key != "gdumb":  # its scorer is made again from the memory
            assert torch.equal(learner.scores(batch([0, 1])[0]), scores)
        again = copied(learner)
        again.learn(*batch(labels, seed=9))
        assert again.state_sha256() == calm.state_sha256(), "what failed shows later"
    if key != "gdumb":
        assert early >= 4, "before the step, in its forward, after its loss and in its backward"
        assert late >= 2, "in the optimiser, at the body and at the head"


def test_a_step_that_fails_after_imprinting_leaves_the_new_rows_as_they_were(monkeypatch):
    learner = onepass.LUCIR(memory=6, device="cpu")
    learner.learn(torch.randn(4, 5), [0, 0, 1, 1])
    learner.new_task()
    learner.learn(torch.randn(4, 5), [0, 1, 2, 2])
    before = learner.model.head.weight.detach().clone()

    def fail(*_):
        raise MemoryError("no room for the previous network's features")

    monkeypatch.setattr(learner.previous, "features", fail)
    with pytest.raises(onepass.OnepassError):
        learner.learn(torch.randn(4, 5), [3, 3, 0, 1])
    assert not learner.trainer.unfinished
    assert torch.equal(learner.model.head.weight, before)


@pytest.mark.parametrize("key", NETWORK_METHODS)
@pytest.mark.parametrize("kind", ["classes for which the head grows", "a class after a boundary"])
def test_a_boundary_and_growth_of_the_head_stay_and_a_retry_succeeds(key, kind):
    gap, labels = BATCHES[kind]
    calm = taught(key, gap)
    calm.learn(*batch(labels, seed=9))
    for learner, _, moved in outcomes(key, labels, gap):
        if moved or learner.trainer.unfinished:  # as at the end of a task
            continue
        assert learner.classes == [0, 1]
        opened = copied(learner)
        opened.learn(*batch(labels, seed=9))
        assert opened.state_sha256() == calm.state_sha256()


def copied(learner):
    """Returns another learner in the same state, without fuses in its memories."""
    other = type(learner)(**learner.get_params())
    other.load_state_dict(learner.state_dict())
    return other


@pytest.mark.parametrize("key", REPEATING)
def test_failing_in_a_repeat_equals_failing_in_a_single_step(key, tmp_path):
    refused, repeated = registry.get(key).learner.traits.unsupported, 0
    settings = {name: value for name, value in SELF_TAUGHT.items() if name not in refused}
    for learner, (state, _), moved in outcomes(key, [1, 0, 1], **settings):
        if moved:
            repeated += 1
            expect_unfinished(learner, tmp_path)
        else:
            assert learner.state_sha256() == state
            assert learner.trainer.first_repeat, "whatever is done next is not the rest of a batch"
            assert learner.trainer.last_repeat
    assert repeated >= 6, "in the optimiser, and all of the second repeat"


@pytest.mark.parametrize("key", NETWORK_METHODS)
def test_a_learner_that_fails_at_its_first_batch_has_learned_nothing(key):
    x, y = batch([0, 1, 0, 1])
    calm = taught(key, batches=[])
    calm.learn(x, y)
    for burns_at in range(1, 99):
        learner = taught(key, batches=[])
        FUSE.lay(burns_at)
        try:
            learner.learn(x, y)
        except (Boom, InputError):  # an InputError if the network fails for its first shape
            FUSE.lay(None)
            assert not learner._prepared
            assert learner.classes == []
            learner.learn(x, y)
            assert learner.state_sha256() == calm.state_sha256()
        else:
            break
    FUSE.lay(None)


@pytest.mark.parametrize("key", ["scr", "rainbow-rt"])
@pytest.mark.parametrize("how", ["end_task", "new_task"])
def test_a_failing_end_of_a_task_leaves_the_learner_unfinished(key, how, tmp_path):
    for burns_at in (1, 2):
        learner = taught(key)
        learner.new_task()
        learner.learn(*batch([2, 3, 2, 3], seed=8))  # the second forward pass of rainbow-rt
        FUSE.lay(burns_at)
        with pytest.raises(Boom):
            getattr(learner, how)()
        FUSE.lay(None)
        expect_unfinished(learner, tmp_path)


def test_an_interrupted_captured_step_leaves_the_learner_unfinished(tmp_path, monkeypatch):
    class Interrupted:
        def replay(self):
            raise KeyboardInterrupt

    class OnHost(GraphEngine):
        def __init__(self):
            super().__init__(())

        def _run_eagerly(self, step, x, y):
            return step(x, y)

        def _capture(self, step, x, y):
            return Interrupted()

    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    learner = taught("er")
    learner.trainer._engine = OnHost()
    for seed in range(WARM_UP):
        learner.learn(*batch([0, 1, 0], seed))
    with pytest.raises(KeyboardInterrupt):
        learner.learn(*batch([0, 1, 0]))
    expect_unfinished(learner, tmp_path)


def test_a_reopened_learner_learns_on(tmp_path):
    learner, calm = taught("er", net="mlp"), taught("er", net="mlp")
    learner.save(tmp_path / "last.pt")
    x, y = batch([0, 1, 7])

    def moves_and_fails(x, y):
        learner.descend(learner.model(learner.views(x)).sum())
        raise Boom

    learner.step = moves_and_fails
    with pytest.raises(Boom):
        learner.learn(x, y)
    with pytest.raises(TrainingError, match=r"reopen the last checkpoint with onepass\.open"):
        learner.learn(x, y)
    opened = onepass.open(tmp_path / "last.pt", device="cpu")
    for either in (opened, calm):
        either.learn(x, y)
    assert opened.state_sha256() == calm.state_sha256()


def test_a_single_sample_that_batchnorm_refuses_changes_nothing():
    learner = taught("finetune")
    before = learner.state_sha256()
    for labels in ([0], [7]):
        with pytest.raises(InputError, match="batches of two or more"):
            learner.learn(*batch(labels))
        assert learner.state_sha256() == before
    assert learner.classes == [0, 1]


@pytest.mark.parametrize("key", NETWORK_METHODS)
def test_learning_works_under_no_grad_but_not_in_inference_mode(key):
    free, inside = taught(key, net="mlp"), taught(key, net="mlp")
    x, y = batch([0, 1, 7], seed=9)
    for mode in (torch.enable_grad(), torch.no_grad()):
        learner = free if isinstance(mode, torch.enable_grad) else inside
        with mode:
            learner.learn(x, y)
            learner.end_task()
            learner.new_task()
    assert inside.state_sha256() == free.state_sha256()

    free.learn(x, y)  # a task can end after this batch
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


def test_a_learner_opened_in_inference_mode_learns_on(tmp_path):
    learner = taught("gsa", net="mlp")
    learner.save(tmp_path / "learner.pt")
    with torch.inference_mode():
        opened = onepass.open(tmp_path / "learner.pt", device="cpu")
        opened.predict(batch([0])[0])
    for either in (learner, opened):
        either.learn(*batch([0, 1, 7]))
    assert opened.state_sha256() == learner.state_sha256()
