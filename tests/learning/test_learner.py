"""The contract's front door: when a learner is prepared, when a task has ended, what scores, and
what is counted beside the steps."""

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
    """Writes down when its hooks are called, and how it then was."""

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
    """The network's logits with another sign."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return -self.net(x)


@dataclass(kw_only=True, eq=False)
class Contrary(Finetune):
    """Scores by minus its logits."""

    def scorer(self):
        return Reversed(self.trainer.eval_model)


@dataclass(kw_only=True, eq=False)
class Failing(ER):
    """Fails where it is told to: before it keeps the batch, or with the batch half taken in."""

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
    """Two memories, a copy of the network, and things that are neither."""

    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.second = Reservoir(7, shape, dtype, self.trainer.rngs["draws"])
        self.teacher = PreviousNetwork(self.trainer)
        self.count = 3


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    register(monkeypatch, Watched, TrainsAtTaskEnd)


# ---- one state: prepared or not


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


def test_preparing_again_begins_again_until_something_was_learned():
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
def test_a_first_step_that_fails_leaves_a_learner_that_is_not_prepared(where, first):
    tried, fresh = made(Failing, memory=5), made(Failing, memory=5)
    tried.new_task()
    tried.fail = where
    with pytest.raises(KeyboardInterrupt):
        if first == "prepare":
            tried.prepare((6,), torch.float32)
        tried.learn(*batch([0, 1, 2]))
    assert not tried._prepared
    assert (tried.steps, tried.classes, tried.task) == (0, [], 0)
    assert tried.class_index.told, "that boundaries are told has not been forgotten"
    tried.fail = ""
    tried.lr = fresh.lr = 0.5  # nothing is in use
    fresh.new_task()
    for learner in (tried, fresh):
        teach(learner, [3, 4])
    assert tried.state_sha256() == fresh.state_sha256()


@pytest.mark.parametrize("where", ["step", "descend"])
def test_after_a_later_step_that_fails_it_goes_on(where):
    """Also when the memory was being given the batch, and when classes came for which the head
    had to grow."""
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
def test_a_state_that_cannot_be_loaded_leaves_a_learner_as_new(name):
    state = teach(made(ER, memory=5), [0, 1]).state_dict()
    tried, fresh = made(ER, memory=5), made(ER, memory=5)
    del state[name]
    with pytest.raises(KeyError):
        tried.load_state_dict(state)
    assert (tried._prepared, tried.steps, tried.classes) == (False, 0, [])
    for learner in (tried, fresh):
        teach(learner, [3, 4])
    assert tried.state_sha256() == fresh.state_sha256()


def test_a_setting_is_in_use_as_soon_as_the_learner_is_prepared():
    learner = made(ER, memory=5)
    learner.lr = 0.25
    learner.prepare((6,), torch.float32)
    with pytest.raises(InputError, match="lr cannot be changed once learning has begun"):
        learner.lr = 0.5
    assert learner.lr == 0.25
    assert learner.trainer.optimizer.param_groups[0]["lr"] == 0.25


# ---- what is kept


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
    """Three tasks of three batches, their boundaries told in one way or another."""
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
def test_a_task_is_finished_once_and_before_anything_of_the_next_one_begins(how, calls, head):
    learner = tell(made(Watched, gap=2, head=head), how)
    assert learner.task == 2
    for task, found in enumerate(learner.ended):
        seen, new = list(range(2 * task + 2)), [2 * task, 2 * task + 1]
        free = seen if head == "trained" or not task else []
        assert found == {"steps": 3 * task + 3, "seen": seen, "new": new, "free": free}
    assert len(learner.ended) == calls


@pytest.mark.parametrize("how", ["new_task", "both", "inferred"])
def test_a_step_may_be_another_one_after_the_first_task_only(how, monkeypatch):
    """What is captured of the first task is of no use then; later boundaries keep what there is."""
    told = []
    monkeypatch.setattr(Trainer, "expect_changed_step", lambda _: told.append(learner.steps))
    monkeypatch.setattr(Finetune, "traits", Traits(later_steps_differ=True))
    learner = made(Finetune, gap=2)
    tell(learner, how)
    assert told == [3]
    monkeypatch.undo()
    monkeypatch.setattr(Trainer, "expect_changed_step", lambda _: told.append(learner.steps))
    tell(made(Finetune, gap=2), how)
    assert told == [3], "nor is anything captured anew for other methods"


def test_finishing_a_task_knows_the_task_and_the_classes_that_end():
    """However its end was found."""
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
    assert [one["steps"] for one in learner.ended] == [3]
    assert learner.task == 1


def test_an_end_that_was_told_is_not_inferred_once_more():
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
def test_a_stop_around_the_end_of_a_task_neither_repeats_nor_forgets_it(stop, tmp_path):
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


def test_what_is_done_at_the_end_of_a_task_changes_what_comes_after():
    """Or the tests around it would see nothing."""
    ends = []
    for method in (Finetune, TrainsAtTaskEnd):
        learner = made(method)
        teach(learner, [0, 1])
        learner.end_task()
        ends.append(learner.params_sha256())
    assert ends[0] != ends[1]


# ---- what scores


def test_a_scorer_is_made_once_for_each_state_however_often_scores_are_asked():
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


def test_an_opened_learner_makes_its_scorer_anew(tmp_path):
    learner = made(Watched)
    teach(learner, [0, 1])
    x, _ = batch([0, 1])
    learner.scores(x)
    again = reopened(learner, tmp_path)
    again.scores(x)
    again.scores(x)
    assert again.ready == [(3, 0)]


def test_scores_and_labels_are_those_of_the_methods_scorer():
    plain, contrary = made(Finetune), made(Contrary)
    for learner in (plain, contrary):
        teach(learner, [3, 5, 4])
    x, _ = batch([3, 5, 4, 4])
    assert torch.equal(contrary.scores(x), -plain.scores(x))
    worst = plain.scores(x).argmin(dim=1)
    assert contrary.predict(x).tolist() == [plain.classes[column] for column in worst.tolist()]
    snapshot = contrary.snapshot()
    assert torch.equal(snapshot.scores(x), contrary.scores(x))


def test_scores_are_of_normalised_samples():
    learner = teach(made(Finetune, mean=(0.5,), std=(2.0,)), [0, 1])
    x, _ = batch([0, 1])
    expected = learner.trainer.eval_model((x - 0.5) / 2)[:, :2].detach()
    torch.testing.assert_close(learner.scores(x), expected)


# ---- a snapshot


def test_a_snapshot_has_nothing_in_common_with_the_learner():
    learner = teach(made(ER, memory=5), [3, 5])
    snapshot, x = learner.snapshot(), batch([3, 5, 3])[0]
    shared = {one.data_ptr() for one in learner.model.state_dict().values()}
    own = snapshot.scorer.state_dict().values()
    assert not shared & {one.data_ptr() for one in own}
    assert not any(one.requires_grad for one in snapshot.scorer.parameters())
    assert all(one.requires_grad for one in learner.model.parameters())
    scores, labels = learner.scores(x), learner.predict(x)
    teach(learner, list(range(20)))
    assert snapshot.classes == (3, 5)
    assert torch.equal(snapshot.scores(x), scores)
    assert torch.equal(snapshot.predict(x), labels)


def test_a_snapshot_is_of_what_was_learned_and_refuses_what_the_learner_would():
    learner = made(ER, memory=5)
    with pytest.raises(NotFittedError, match="learned nothing yet"):
        learner.snapshot()
    snapshot = teach(learner, [0, 1]).snapshot()
    for x in (torch.zeros(2, 7), torch.zeros(0, 6), torch.full((1, 6), torch.nan), "x"):
        with pytest.raises(InputError, match=r"^x"):
            snapshot.scores(x)


# ---- what is spent beside the steps


def test_what_is_spent_adds_up_by_purpose_and_survives_a_file(tmp_path):
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


def test_what_a_scorer_takes_is_spent_once_for_each_state():
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


class FailsWhenTold(ER):
    """Raises in its step while `failing`."""

    failing = False

    def descend(self, loss):
        if self.failing:
            raise RuntimeError("out of memory")
        super().descend(loss)


def test_classes_of_a_step_that_fails_are_as_unknown_as_before():
    tried, other = (made(FailsWhenTold, memory=5, gap=2) for _ in range(2))
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
def test_a_part_that_would_be_forgotten_is_refused(holder):
    class Hides(ER):
        def build(self, shape, dtype):
            super().build(shape, dtype)
            self.teachers = holder([PreviousNetwork(self.trainer)])

    learner = made(Hides, memory=5)
    with pytest.raises(InputError, match="teachers holds a part"):
        learner.learn(*batch([0, 1]))
    assert not learner._prepared
