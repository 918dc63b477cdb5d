"""Tests the learner's interface: when it is prepared, when a task ends, what scores, and which
images it counts."""

from dataclasses import dataclass, field

import pytest
import torch
from label_vectors import TASKS, TrainsAtTaskEnd, batch, made, register, reopened, teach
from torch import nn

from onepass import ER, Finetune, InputError, NotFittedError
from onepass.base.parts import ImageCount
from onepass.learning.memory_contents import copy_bytes, memory_bytes, stores_of
from onepass.learning.network_copies import PreviousNetwork
from onepass.learning.trainer import Trainer
from onepass.learning.traits import Traits
from onepass.memory import Reservoir


@dataclass(kw_only=True, eq=False)
class Watched(Finetune):
    """A learner that logs its hooks, with its state at the call."""

    ended: list = field(init=False, default_factory=list)
    ready: list = field(init=False, default_factory=list)

    def on_task_end(self):
        self.ended.append(
            {
                "steps": self.steps,
                "seen": self.seen.nonzero().flatten().tolist(),
                "new": self.new.nonzero().flatten().tolist(),
                "free": self.model.head.free.nonzero().flatten().tolist(),
            }
        )

    def scorer(self):
        self.ready.append((self.steps, len(self.ended)))
        return super().scorer()


class Reversed(nn.Module):
    """A network that negates the logits."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return -self.net(x)


@dataclass(kw_only=True, eq=False)
class Contrary(Finetune):
    """A learner that scores by minus its logits."""

    def scorer(self):
        return Reversed(self.trainer.eval_model)


@dataclass(kw_only=True, eq=False)
class Failing(ER):
    """A learner that fails before it keeps the batch, or in the middle of keeping it."""

    fail: str = field(init=False, default="")

    def build(self, shape, dtype):
        super().build(shape, dtype)
        if self.fail == "build":
            raise KeyboardInterrupt

    def step(self, x, y):
        if self.fail == "step":
            raise KeyboardInterrupt
        return super().step(x, y)

    def descend(self, loss):
        if self.fail == "descend":
            raise KeyboardInterrupt
        super().descend(loss)


@dataclass(kw_only=True, eq=False)
class Hoarding(ER):
    """A learner with two memories, a copy of the network, and other attributes."""

    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.second = Reservoir(7, shape, dtype, self.trainer.rngs["draws"])
        self.teacher = PreviousNetwork(self.trainer)
        self.count = 3


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    register(monkeypatch, Watched, TrainsAtTaskEnd)


# ---- prepared or not


def test_a_learner_is_prepared_by_its_first_batch_or_before_it():
    learner = made(ER, memory=5)
    assert not learner._prepared
    for ask in (lambda: learner.trainer, lambda: learner.model, lambda: stores_of(learner)):
        with pytest.raises(NotFittedError, match="has not seen a sample"):
            ask()
    learner.learn(*batch([0, 1]))
    assert learner._prepared

    before = made(ER, memory=5)
    before.prepare((6,), torch.float32)
    assert before._prepared and before.steps == 0 and before.classes == []
    with pytest.raises(NotFittedError, match="learned nothing yet"):
        before.predict(batch([0])[0])
    before.learn(*batch([0, 1]))
    assert before.state_sha256() == learner.state_sha256()


def test_a_learner_can_be_prepared_again_until_it_has_learned():
    once, again = made(ER, memory=5), made(ER, memory=5)
    again.prepare((3, 8, 8), torch.uint8)
    again.prepare((6,), torch.float32)
    for learner in (once, again):
        teach(learner, [0, 1])
    assert again.state_sha256() == once.state_sha256()
    with pytest.raises(InputError, match="this ER has learned already"):
        again.prepare((6,), torch.float32)
    assert again.state_sha256() == once.state_sha256()


@pytest.mark.parametrize("where", ["build", "step", "descend"])
@pytest.mark.parametrize("first", ["learn", "prepare"])
def test_a_failing_first_step_leaves_the_learner_unprepared(where, first):
    tried, fresh = made(Failing, memory=5), made(Failing, memory=5)
    tried.new_task()
    tried.fail = where
    with pytest.raises(KeyboardInterrupt):
        if first == "prepare":
            tried.prepare((6,), torch.float32)
        tried.learn(*batch([0, 1, 2]))
    assert not tried._prepared
    assert (tried.steps, tried.classes, tried.task) == (0, [], 0)
    assert tried.class_index.told, "the learner still knows of boundaries from the caller"
    tried.fail = ""
    tried.lr = fresh.lr = 0.5  # no setting is in use
    fresh.new_task()
    for learner in (tried, fresh):
        teach(learner, [3, 4])
    assert tried.state_sha256() == fresh.state_sha256()


@pytest.mark.parametrize("where", ["step", "descend"])
def test_after_a_later_failing_step_it_learns_on(where):
    """This includes a failure while the memory takes the batch, and new classes that grow the
    head."""
    learner = teach(made(Failing, memory=5), [0, 1])
    x, _ = batch([0, 1, 2])
    learner.scores(x)
    learner.fail = where
    with pytest.raises(KeyboardInterrupt):
        learner.learn(*batch(list(range(20))))
    learner.fail = ""
    assert learner.steps == 3
    assert learner.scores(x).shape == (3, len(learner.classes)) == (3, 2)
    teach(learner, [0, 1, 19])
    assert learner.steps == 6
    assert bool(torch.isfinite(learner.scores(x)).all())


@pytest.mark.parametrize("name", ["model", "optimizer", "parts", "generators"])
def test_a_state_that_cannot_be_loaded_leaves_the_learner_new(name):
    state = teach(made(ER, memory=5), [0, 1]).state_dict()
    tried, fresh = made(ER, memory=5), made(ER, memory=5)
    del state[name]
    with pytest.raises(KeyError):
        tried.load_state_dict(state)
    assert (tried._prepared, tried.steps, tried.classes) == (False, 0, [])
    for learner in (tried, fresh):
        teach(learner, [3, 4])
    assert tried.state_sha256() == fresh.state_sha256()


def test_settings_are_fixed_once_the_learner_is_prepared():
    learner = made(ER, memory=5)
    learner.lr = 0.25
    learner.prepare((6,), torch.float32)
    with pytest.raises(InputError, match="lr cannot be changed once learning has begun"):
        learner.lr = 0.5
    assert learner.lr == 0.25
    assert learner.trainer.optimizer.param_groups[0]["lr"] == 0.25


# ---- memories and copies


def test_stores_are_the_memories_by_name_and_bytes_those_of_memories_and_copies():
    learner = teach(made(Hoarding, memory=5), [0, 1])
    assert stores_of(learner) == [learner.store, learner.second]
    assert learner.second.column_names == ("x", "y")
    assert memory_bytes(learner) == (5 + 7) * (6 * 4 + 8)
    assert copy_bytes(learner) == learner.teacher.bytes > 0
    plain = teach(made(Finetune), [0, 1])
    assert (stores_of(plain), memory_bytes(plain), copy_bytes(plain)) == ([], 0, 0)


# ---- the end of a task


def tell(learner, how):
    """Returns three tasks of three batches, with boundaries set in one of several ways."""
    for index, labels in enumerate(TASKS):
        if how == "new_task" or (how == "both" and index):
            learner.new_task()
        teach(learner, labels)
        if how in ("end_task", "both"):
            learner.end_task()
            learner.end_task()
        if how == "end_task":
            learner.new_task()
    return learner


@pytest.mark.parametrize(("how", "calls"), [("new_task", 2), ("both", 3), ("inferred", 2)])
@pytest.mark.parametrize("head", ["trained", "frozen"])
def test_a_task_is_finished_once_and_before_the_next_one_begins(how, calls, head):
    learner = tell(made(Watched, gap=2, head=head), how)
    assert learner.task == 2
    for task, found in enumerate(learner.ended):
        seen, new = list(range(2 * task + 2)), [2 * task, 2 * task + 1]
        free = seen if head == "trained" or not task else []
        assert found == {"steps": 3 * task + 3, "seen": seen, "new": new, "free": free}
    assert len(learner.ended) == calls


@pytest.mark.parametrize("how", ["new_task", "both", "inferred"])
def test_a_step_may_change_after_the_first_task_only(how, monkeypatch):
    """The step captured in the first task is then dropped; later boundaries keep the graph."""
    drops = []
    monkeypatch.setattr(Trainer, "expect_changed_step", lambda _: drops.append(learner.steps))
    monkeypatch.setattr(Finetune, "traits", Traits(later_steps_differ=True))
    learner = made(Finetune, gap=2)
    tell(learner, how)
    assert drops == [3]
    monkeypatch.undo()
    monkeypatch.setattr(Trainer, "expect_changed_step", lambda _: drops.append(learner.steps))
    tell(made(Finetune, gap=2), how)
    assert drops == [3], "other methods keep their graph"


def test_on_task_end_sees_the_task_and_the_classes_that_end():
    """This holds for inferred boundaries too."""
    known = {}

    @dataclass(kw_only=True, eq=False)
    class Asking(Finetune):
        def on_task_end(self):
            known[how].append((self.task, self.classes))

    for how in ("new_task", "end_task", "inferred"):
        known[how] = []
        tell(made(Asking, gap=2), how)
    assert known["new_task"] == [(0, [0, 1]), (1, [0, 1, 2, 3])]
    assert known["end_task"][:2] == known["new_task"]
    assert known["inferred"] == known["new_task"]


def test_a_task_without_a_batch_is_not_finished():
    learner = made(Watched)
    learner.end_task()
    learner.new_task()
    learner.new_task()
    assert learner.ended == []
    teach(learner, [0, 1])
    for _ in range(3):
        learner.new_task()
        learner.end_task()
    assert [value["steps"] for value in learner.ended] == [3]
    assert learner.task == 1


def test_a_task_ended_by_the_caller_is_not_ended_again():
    learner = made(Watched, gap=2)
    teach(learner, [0, 1])
    learner.end_task()
    assert learner.task == 0
    teach(learner, [2, 3])
    assert learner.task == 1
    assert len(learner.ended) == 1
    learner.end_task()
    assert len(learner.ended) == 2


@pytest.mark.parametrize("stop", [None, "before", "between", "after"])
def test_a_stop_around_the_end_of_a_task_neither_repeats_nor_skips_it(stop, tmp_path):
    learner = made(TrainsAtTaskEnd)
    teach(learner, [0, 1])
    for moment in ("before", "between", "after"):
        if moment == stop:
            learner = reopened(learner, tmp_path)
        if moment == "before":
            learner.end_task()
        elif moment == "between":
            assert learner._task_ended
            learner.new_task()
    assert not learner._task_ended
    assert learner.trainer.image_counts == {"task ends": ImageCount(4, 1)}
    teach(learner, [2, 3])
    straight = made(TrainsAtTaskEnd)
    teach(straight, [0, 1])
    straight.new_task()
    teach(straight, [2, 3])
    assert learner.state_sha256() == straight.state_sha256()


def test_on_task_end_changes_later_steps():
    """Otherwise the tests above would detect nothing."""
    ends = []
    for method in (Finetune, TrainsAtTaskEnd):
        learner = made(method)
        teach(learner, [0, 1])
        learner.end_task()
        ends.append(learner.params_sha256())
    assert ends[0] != ends[1]


# ---- the scorer


def test_a_scorer_is_made_once_per_state():
    learner = made(Watched)
    teach(learner, [0, 1])
    assert learner.ready == []
    x, _ = batch([0, 1, 0])
    asks = (learner.scores, learner.predict, lambda x: learner.snapshot(), learner.scores)
    for ask in asks:
        ask(x)
    assert learner.ready == [(3, 0)]
    learner.learn(*batch([0, 1]))
    assert learner.ready == [(3, 0)]
    learner.scores(x)
    learner.scores(x[:1])
    assert learner.ready == [(3, 0), (4, 0)]
    learner.end_task()
    learner.scores(x)
    learner.scores(x)
    assert learner.ready == [(3, 0), (4, 0), (4, 1)]


def test_a_task_that_was_finished_by_the_next_one_is_a_new_state():
    learner = made(Watched)
    teach(learner, [0, 1])
    x, _ = batch([0, 1])
    learner.scores(x)
    learner.new_task()
    learner.scores(x)
    assert learner.ready == [(3, 0), (3, 1)]


def test_an_opened_learner_makes_its_scorer_again(tmp_path):
    learner = made(Watched)
    teach(learner, [0, 1])
    x, _ = batch([0, 1])
    learner.scores(x)
    again = reopened(learner, tmp_path)
    again.scores(x)
    again.scores(x)
    assert again.ready == [(3, 0)]


def test_scores_and_labels_come_from_the_methods_scorer():
    plain, contrary = made(Finetune), made(Contrary)
    for learner in (plain, contrary):
        teach(learner, [3, 5, 4])
    x, _ = batch([3, 5, 4, 4])
    assert torch.equal(contrary.scores(x), -plain.scores(x))
    worst = plain.scores(x).argmin(dim=1)
    assert contrary.predict(x).tolist() == [plain.classes[column] for column in worst.tolist()]
    snapshot = contrary.snapshot()
    assert torch.equal(snapshot.scores(x), contrary.scores(x))


def test_scores_use_normalised_samples():
    learner = teach(made(Finetune, mean=(0.5,), std=(2.0,)), [0, 1])
    x, _ = batch([0, 1])
    expected = learner.trainer.eval_model((x - 0.5) / 2)[:, :2].detach()
    torch.testing.assert_close(learner.scores(x), expected)


# ---- a snapshot


def test_a_snapshot_shares_nothing_with_the_learner():
    learner = teach(made(ER, memory=5), [3, 5])
    snapshot, x = learner.snapshot(), batch([3, 5, 3])[0]
    shared = {value.data_ptr() for value in learner.model.state_dict().values()}
    own = snapshot.scorer.state_dict().values()
    assert not shared & {value.data_ptr() for value in own}
    assert not any(parameter.requires_grad for parameter in snapshot.scorer.parameters())
    assert all(parameter.requires_grad for parameter in learner.model.parameters())
    scores, labels = learner.scores(x), learner.predict(x)
    teach(learner, list(range(20)))
    assert snapshot.classes == (3, 5)
    assert torch.equal(snapshot.scores(x), scores)
    assert torch.equal(snapshot.predict(x), labels)


def test_a_snapshot_needs_a_learned_batch_and_refuses_invalid_samples():
    learner = made(ER, memory=5)
    with pytest.raises(NotFittedError, match="learned nothing yet"):
        learner.snapshot()
    snapshot = teach(learner, [0, 1]).snapshot()
    for x in (torch.zeros(2, 7), torch.zeros(0, 6), torch.full((1, 6), torch.nan), "x"):
        with pytest.raises(InputError, match=r"^x"):
            snapshot.scores(x)


# ---- images outside of steps


def test_image_counts_add_up_by_purpose_and_are_saved(tmp_path):
    learner = made(Finetune)
    teach(learner, [0, 1])
    assert learner.trainer.image_counts == {}
    learner.trainer.count_images("scores", ImageCount(5, 7))
    learner.trainer.count_images("task ends", ImageCount(1))
    learner.trainer.count_images("scores", ImageCount(10))
    expected = {"scores": ImageCount(15, 7), "task ends": ImageCount(1, 0)}
    assert learner.trainer.image_counts == expected
    again = reopened(learner, tmp_path)
    assert again.trainer.image_counts == expected
    again.trainer.count_images("task ends", ImageCount(0, 2))
    assert again.trainer.image_counts["task ends"] == ImageCount(1, 2)
    assert learner.trainer.image_counts == expected


def test_the_images_of_a_scorer_are_counted_once_per_state():
    learner = teach(made(TrainsAtTaskEnd), [0, 1])
    x, _ = batch([0, 1])
    for _ in range(3):
        learner.scores(x)
    assert learner.trainer.image_counts == {"scores": ImageCount(0, 3)}
    learner.end_task()
    learner.scores(x)
    assert learner.trainer.image_counts == {
        "scores": ImageCount(0, 6),
        "task ends": ImageCount(4, 1),
    }


class FailsOnDemand(ER):
    """A learner whose step raises while `failing`."""

    failing = False

    def descend(self, loss):
        if self.failing:
            raise RuntimeError("out of memory")
        super().descend(loss)


def test_the_new_classes_of_a_failing_step_stay_unknown():
    tried, other = (made(FailsOnDemand, memory=5, gap=2) for _ in range(2))
    for learner in (tried, other):
        teach(learner, [0, 1], times=4)
    tried.failing = True
    born = tried.model.head.weight[2:4].clone()
    for labels in ([2, 3], [4, 5]):
        with pytest.raises(RuntimeError, match="out of memory"):
            tried.learn(*batch(labels))
    assert (tried.classes, tried.task) == ([0, 1], 1), "the boundary before them stays"
    assert tried.scores(batch([0])[0]).shape == (1, 2)
    assert torch.equal(tried.model.head.weight[2:4], born)
    tried.failing = False
    assert teach(tried, [2, 3]).classes == [0, 1, 2, 3]
    assert tried.task == 1


def test_a_batch_may_be_kept_when_a_task_ends():
    class KeepsAtTheEnd(ER):
        def on_task_end(self):
            self.keep(*(part.clone() for part in (self.store.x[:1], self.store.y[:1])))

    learner = teach(made(KeepsAtTheEnd, memory=5), [0, 1])
    learner.new_task()
    assert teach(learner, [2, 3]).steps == 6


def test_a_task_ends_once():
    class Counts(ER):
        ends = 0

        def on_task_end(self):
            self.ends += 1

    learner = teach(made(Counts, memory=5), [0, 1])
    for _ in range(2):
        learner.end_task()
    learner.new_task()
    assert learner.ends == 1


@pytest.mark.parametrize("holder", [list, lambda parts: dict(enumerate(parts))])
def test_a_part_that_would_not_be_saved_is_refused(holder):
    class Hides(ER):
        def build(self, shape, dtype):
            super().build(shape, dtype)
            self.teachers = holder([PreviousNetwork(self.trainer)])

    learner = made(Hides, memory=5)
    with pytest.raises(InputError, match="teachers holds a PreviousNetwork"):
        learner.learn(*batch([0, 1]))
    assert not learner._prepared
