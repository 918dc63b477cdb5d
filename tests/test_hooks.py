"""The hooks of a learner, each in a small method that needs it."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from following import Stopped, stop_after
from torch import nn

import onepass
from onepass import ClassIncremental, Finetune, evaluate, registry
from onepass.evaluate import Point, Tick, walk
from onepass.job import Job
from onepass.losses import cross_entropy
from onepass.nets import CosineHead, build
from onepass.parts import Images, Samples, Step
from onepass.report import tables
from onepass.run import run


def batch(labels, seed=0):
    source = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)
    return y.view(-1, 1) + torch.randn(len(y), 6, generator=source), y


def teach(learner, labels, times=3):
    for seed in range(times):
        learner.learn(*batch(labels, seed))


@dataclass(kw_only=True, eq=False)
class Watched(Finetune):
    """Writes down when its hooks are called, and how it then was."""

    ended: list = field(init=False, repr=False, default_factory=list)
    ready: list = field(init=False, repr=False, default_factory=list)

    def on_task_end(self):
        self.ended.append(
            {
                "steps": self.steps,
                "seen": self.seen.nonzero().flatten().tolist(),
                "new": self.new.nonzero().flatten().tolist(),
                "free": self.model.head.free.nonzero().flatten().tolist(),
            }
        )

    def get_ready(self):
        self.ready.append((self.steps, len(self.ended)))


@dataclass(kw_only=True, eq=False)
class Tidy(Finetune):
    """Trains when a task ends, and counts the images of that and of getting ready."""

    def on_task_end(self):
        x = torch.ones(4, *self._shape, dtype=self._dtype)
        rows = torch.arange(4) % len(self.classes)
        output = self.forward(Samples(x, rows, torch.ones(4)))
        self.descend(cross_entropy(*output, among=self.seen))
        self.spend("task ends", Images(4, 1))

    def get_ready(self):
        self.spend("scores", Images(0, 3))


@dataclass(kw_only=True, eq=False)
class Late(Finetune):
    """Says that it trains when scores are asked for."""

    trains_to_score = True


@dataclass(kw_only=True, eq=False)
class Twofold(Finetune):
    """Trains a module beside backbone and head, and scores with both."""

    def modules(self, features):
        source = self.generators["initialisation"]
        return {"second": build(lambda: nn.Linear(features, 16), source)}

    def both(self, inputs):
        features = self.model.body(inputs)
        return self.model.head(features), self.model.second(features)

    def step(self, x, y):
        logits = torch.stack(self.both(self.views(x)))
        loss = sum(F.cross_entropy(one[:, : len(self.classes)], y) for one in logits)
        self.descend(loss)
        return Step(loss.detach(), {}, ())

    def logits(self, inputs):
        return sum(self.both(inputs))


@dataclass(kw_only=True, eq=False)
class Cosine(Finetune):
    """Has a head of cosines."""

    def make_head(self, features):
        return CosineHead(features, 16, self.generators["initialisation"], scale=5.0)


@dataclass(kw_only=True, eq=False)
class InTwo(Finetune):
    """Fine-tuning whose gradients are made first and applied afterwards."""

    def step(self, x, y):
        new = self.forward(Samples(x, y, torch.ones(len(y))))
        loss = cross_entropy(*new, among=self.seen)
        self.apply(self.gradients(loss))
        return Step(loss.detach(), {}, (new.detach(),))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Known by name in this process, for files and jobs."""
    for learner in (Watched, Tidy, Late, Twofold, Cosine, InTwo):
        key = f"test-{learner.__name__.lower()}"
        monkeypatch.setattr(learner, "key", key)
        info = registry.MethodInfo(key, learner, "none", 0, "uses", one_task=False)
        monkeypatch.setitem(registry._METHODS, key, info)


def made(method, **settings):
    return method(**{"device": "cpu", "seed": 1, **settings})


def reopened(learner, path: Path):
    learner.save(path / "learner.pt")
    return onepass.open(path / "learner.pt", device="cpu")


# ---- the end of a task

TASKS = ([0, 1], [2, 3], [4, 5])


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
    learner = made(Tidy)
    teach(learner, [0, 1])
    for moment in ("before", "between", "after"):
        if moment == stop:
            learner = reopened(learner, tmp_path)
        if moment == "before":
            learner.end_task()
        elif moment == "between":
            assert learner.finished
            learner.new_task()
    assert not learner.finished
    assert learner.spent == {"task ends": Images(4, 1)}
    teach(learner, [2, 3])
    straight = made(Tidy)
    teach(straight, [0, 1])
    straight.new_task()
    teach(straight, [2, 3])
    assert learner.state_sha256() == straight.state_sha256()


def test_what_is_done_at_the_end_of_a_task_changes_what_comes_after():
    """Or the tests around it would see nothing."""
    ends = []
    for method in (Finetune, Tidy):
        learner = made(method)
        teach(learner, [0, 1])
        learner.end_task()
        ends.append(learner.params_sha256())
    assert ends[0] != ends[1]


# ---- getting ready to score


def test_getting_ready_is_done_once_for_each_state_however_often_scores_are_asked():
    learner = made(Watched)
    teach(learner, [0, 1])
    assert learner.ready == []
    x, _ = batch([0, 1, 0])
    for ask in (learner.scores, learner.predict, learner.scores):
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


def test_an_opened_learner_gets_ready_anew(tmp_path):
    learner = made(Watched)
    teach(learner, [0, 1])
    x, _ = batch([0, 1])
    learner.scores(x)
    again = reopened(learner, tmp_path)
    again.scores(x)
    again.scores(x)
    assert again.ready == [(3, 0)]


# ---- what is spent beside the steps


def test_what_is_spent_adds_up_by_purpose_and_survives_a_file(tmp_path):
    learner = made(Finetune)
    teach(learner, [0, 1])
    assert learner.spent == {}
    learner.spend("scores", Images(5, 7))
    learner.spend("task ends", Images(1))
    learner.spend("scores", Images(10))
    expected = {"scores": Images(15, 7), "task ends": Images(1, 0)}
    assert learner.spent == expected
    again = reopened(learner, tmp_path)
    assert again.spent == expected
    again.spend("task ends", Images(0, 2))
    assert again.spent["task ends"] == Images(1, 2)
    assert learner.spent == expected


def test_a_runs_result_has_what_was_spent_and_a_stop_at_a_tasks_end_changes_no_bit(tmp_path):
    job = Job("test-tidy", "synthetic", device="cpu")
    whole = run(job, tmp_path / "whole")
    for step in (12, 30):  # the first task's last step, and one inside the third
        with pytest.raises(Stopped):
            run(job, tmp_path / "broken", resume=True, checkpoint=6, listeners=[stop_after(step)])
    result = run(job, tmp_path / "broken", resume=True)
    points = len((tmp_path / "whole" / job.folder_name / "events.jsonl").read_text().splitlines())
    assert whole.images_beside_steps == {
        "task ends": {"trained": 5 * 4, "scored": 5},
        "scores": {"trained": 0, "scored": 3 * points},
    }
    for key in ("images_beside_steps", "state_sha256", "accuracy_matrix"):
        assert getattr(result, key) == getattr(whole, key), key


# ---- modules beside backbone and head


@pytest.mark.parametrize("optimizer", ["adam", "nesterov"])
def test_a_module_of_the_methods_own_trains_and_is_saved(optimizer, tmp_path):
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
    for one in (learner, again):
        teach(one, [1, 2, 3])
    assert again.state_sha256() == learner.state_sha256()


def test_a_module_of_the_methods_own_is_part_of_the_fingerprint():
    learner = made(Twofold)
    teach(learner, [0, 1])
    before = learner.params_sha256()
    with torch.no_grad():
        learner.model.second.bias[0] += 1
    assert learner.params_sha256() != before


def test_scores_are_the_methods_own():
    learner = made(Twofold)
    teach(learner, [3, 5])
    x, _ = batch([3, 5])
    with torch.no_grad():
        expected = sum(learner.both(x))[:, :2]
    assert torch.equal(learner.scores(x), expected)


# ---- a head of cosines


def test_cosines_depend_neither_on_the_length_of_features_and_rows_nor_on_the_bias():
    source = torch.Generator().manual_seed(0)
    head = CosineHead(4, 6, source, scale=5.0)
    features = torch.randn(7, 4, generator=source)
    logits = head(features)
    expected = 5 * torch.cosine_similarity(features.unsqueeze(1), head.weight, dim=2)
    torch.testing.assert_close(logits, expected)
    assert bool((logits.abs() <= 5 + 1e-5).all())
    stretch = torch.tensor([1e-3, 0.5, 1, 2, 10, 1e3, 1e4])
    torch.testing.assert_close(head(features * stretch.unsqueeze(1)), logits)
    with torch.no_grad():
        head.weight *= stretch[:6].unsqueeze(1)
        head.bias += 100
    torch.testing.assert_close(head(features), logits)
    assert bool(torch.isfinite(head(torch.zeros(1, 4))).all())


@pytest.mark.parametrize("head", ["trained", "frozen"])
def test_a_learner_with_a_head_of_its_own_learns_grows_and_is_saved(head, tmp_path):
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
    for one in (learner, again):
        one.learn(x, y)
    assert again.state_sha256() == learner.state_sha256()


# ---- gradients, then a step along them


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "nesterov"])
@pytest.mark.parametrize("head", ["trained", "frozen"])
def test_gradients_applied_are_a_descent_bit_for_bit(optimizer, head):
    ends = []
    for method in (Finetune, InTwo):
        learner = made(method, optimizer=optimizer, head=head)
        for labels in TASKS:
            learner.new_task()
            teach(learner, labels, times=4)
        ends.append(learner.state_sha256())
    assert ends[0] == ends[1]


def test_a_parameter_that_the_loss_does_not_reach_has_a_gradient_of_zeros():
    learner = made(Twofold)
    teach(learner, [0, 1])
    x, y = batch([0, 1])
    found = learner.gradients(F.cross_entropy(learner.model(x), y))
    names = [name for name, one in learner.model.named_parameters() if one.requires_grad]
    assert [one.shape for one in found] == [one.shape for one in learner.trained]
    silent = {name for name, one in zip(names, found, strict=True) if not one.any()}
    assert silent == {"second.weight", "second.bias"}


def test_applying_too_few_gradients_is_an_error():
    learner = made(Finetune)
    teach(learner, [0, 1])
    with pytest.raises(ValueError, match="shorter"):
        learner.apply([torch.zeros_like(one) for one in learner.trained[:-1]])


# ---- methods that train to score


@pytest.fixture(scope="module")
def stream():
    data = onepass.load("synthetic", classes=6, train_per_class=9, test_per_class=7, shape=(6,))
    return ClassIncremental(data, tasks=3, batch=4, seed=1)


def test_a_method_that_trains_to_score_is_scored_at_the_end_only(stream):
    points = list(evaluate(made(Late), stream))
    assert [(point.step, point.task, point.boundary) for point in points] == [(15, 2, True)]
    ticks = list(walk(made(Late), stream))
    assert [tick.step for tick in ticks] == list(range(1, 16))
    assert [isinstance(tick, Point) for tick in ticks] == [False] * 14 + [True]


@pytest.mark.parametrize("every", [1, 4, 100])
def test_with_a_cadence_it_is_scored_then_and_at_the_ends_of_tasks(stream, every):
    steps = [point.step for point in evaluate(made(Late), stream, every=every)]
    assert steps == sorted({5, 10, 15} | set(range(every, 16, every)))


def test_scoring_at_the_end_only_is_told_from_forgetting_nothing(tmp_path):
    result = run(Job("test-late", "synthetic", device="cpu"), tmp_path)
    assert result.forgetting is None
    assert result.forgetting_all_tasks is None
    assert result.accuracy_matrix[:-1] == [[None] * 5] * 4
    assert None not in result.accuracy_matrix[-1]
    assert result.anytime_accuracy is None
    assert result.accuracy == pytest.approx(result.mean_task_accuracy)
    (row,) = tables.summarise([result])
    assert row.forgetting is None
    header, (cells,) = tables.grid([row])
    assert len(header) == len(cells)

    whole = run(Job("test-late", "synthetic", device="cpu", every=30), tmp_path)
    assert whole.forgetting >= 0
    assert whole.params_sha256 == result.params_sha256


# ---- what is timed as what


def test_training_scoring_and_capture_are_timed_apart(stream, monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(sys.modules["onepass.evaluate"], "time", clock)

    @dataclass(kw_only=True, eq=False)
    class Slow(Finetune):
        """A step takes a second, and a quarter to capture; the end of a task 10; scores 100."""

        captured: float = field(init=False, repr=False, default=0.0)

        @property
        def capture_seconds(self):
            return self.captured

        def step(self, x, y):
            now[0] += 1.25
            self.captured += 0.25
            return super().step(x, y)

        def on_task_end(self):
            now[0] += 10

        def get_ready(self):
            now[0] += 1000

        def logits(self, inputs):
            now[0] += 100
            return super().logits(inputs)

    ticks = []
    for tick in walk(made(Slow), stream, every=4):
        ticks.append(tick)
        now[0] += 1e6  # what others do with it is nobody's time
    scored = [tick.step for tick in ticks if isinstance(tick, Point)]
    assert scored == [4, 5, 8, 10, 12, 15]
    for tick in ticks:
        assert tick.seconds == tick.step + 10 * (tick.step // 5)
        assert tick.capture == 0.25 * tick.step
        assert tick.scoring == 1100 * sum(step <= tick.step for step in scored)

    learner = made(Slow)
    list(walk(learner, stream))
    start = Tick(5, 0, seconds=7.0, scoring=3.0, capture=2.0)
    on = next(walk(learner, stream, start=start))
    assert (on.step, on.seconds, on.scoring, on.capture) == (6, 8.0, 3.0, 2.25)


def test_a_gradient_in_another_memory_format_moves_its_parameter_all_the_same():
    """Fused optimisers read memory in order."""

    def learner():
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(0.1)
        made = Finetune(net=net, optimizer="sgd", lr=1.0, weight_decay=0.0, device="cpu")
        made.prepare((3, 6, 6), torch.uint8)
        made.model.to(memory_format=torch.channels_last)
        return made

    ends = []
    for form in (torch.channels_last, torch.contiguous_format):
        one = learner()
        gradients = [torch.arange(float(p.numel())).view(p.shape) for p in one.trained]
        one.apply([g.contiguous(memory_format=form) if g.ndim == 4 else g for g in gradients])
        ends.append(one.model.body[0].weight.detach().clone())
    assert torch.equal(*ends)
    assert torch.allclose(ends[0], 0.1 - torch.arange(108.0).view(4, 3, 3, 3))
