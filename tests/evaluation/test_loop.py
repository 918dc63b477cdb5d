"""The loop: when it scores, on which samples, and that scoring changes nothing."""

import math
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

import onepass
from onepass import ClassIncremental, Finetune, InputError, TrainingError, load
from onepass.evaluation.callbacks import Listener
from onepass.evaluation.loop import Point, Tick, evaluate, learn_and_score
from onepass.learning.traits import Traits


@pytest.fixture(scope="module")
def data():
    return onepass.load(
        "synthetic", classes=6, train_per_class=9, test_per_class=7, shape=(10,), noise=0.5
    )


@pytest.fixture
def stream(data):
    return ClassIncremental(data, tasks=3, batch=4, seed=1)


def make_learner(method=onepass.ER, **settings):
    return method(**{"device": "cpu", "seed": 2, **settings})


def untimed(tick):
    return {**vars(tick), "seconds": None, "scoring": None}


class Broken(nn.Module):
    """A network whose outputs become NaN after some forward passes."""

    def __init__(self, after):
        super().__init__()
        self.after, self.calls = after, 0
        self.linear = nn.Linear(10, 4)

    def forward(self, x):
        self.calls += self.training
        return self.linear(x) * (math.nan if self.calls > self.after else 1.0)


# ---- when it scores


def test_there_is_a_point_at_the_end_of_each_task(stream):
    points = list(evaluate(make_learner(memory=20), stream))
    assert [(point.task, point.step) for point in points] == [(0, 5), (1, 10), (2, 15)]
    assert all(point.boundary for point in points)


@pytest.mark.parametrize("every", [1, 2, 4, 5, 100])
def test_there_is_a_point_after_every_so_many_steps(stream, every):
    points = list(evaluate(make_learner(memory=20), stream, every=every))
    ends = {5, 10, 15}
    assert [point.step for point in points] == sorted(ends | set(range(every, 16, every)))
    assert [point.boundary for point in points] == [point.step in ends for point in points]
    assert [point.task for point in points] == [(point.step - 1) // 5 for point in points]


def test_there_is_a_tick_after_every_batch(stream):
    ticks = list(learn_and_score(make_learner(memory=20), stream))
    assert [tick.step for tick in ticks] == list(range(1, 16))
    assert [isinstance(tick, Point) for tick in ticks] == [tick.step % 5 == 0 for tick in ticks]
    assert [tick.seconds for tick in ticks] == sorted(tick.seconds for tick in ticks)
    assert ticks[0].seconds > 0


def test_the_loop_learns_nothing_until_the_next_point_is_requested(stream):
    learner = make_learner(memory=20)
    points = evaluate(learner, stream)
    assert learner.steps == 0
    next(points)
    assert learner.steps == 5


def test_the_learner_is_told_of_every_boundary(stream):
    learner = make_learner(memory=20, gap=1)
    tasks = [learner.task for _ in learn_and_score(learner, stream)]
    assert tasks == [0] * 5 + [1] * 5 + [2] * 5
    assert learner.class_index.told


def test_the_loss_of_a_point_is_that_of_its_step(stream):
    watched, by_hand = make_learner(memory=20), make_learner(memory=20)
    losses = []
    for step, (x, y) in enumerate(stream):
        if stream.starts_task(step):
            by_hand.new_task()
        losses.append(float(by_hand.learn(x, y).loss))
    by_hand.end_task()
    points = list(evaluate(watched, stream, every=2))
    assert [point.loss for point in points] == [losses[point.step - 1] for point in points]
    assert watched.state_sha256() == by_hand.state_sha256()


# ---- on which samples


def test_counts_are_those_of_a_recount_with_predict(data, stream):
    """The confusion of tasks, of two classes each, is counted only at the end of a task."""
    learner = make_learner(memory=4)
    for point in evaluate(learner, stream, every=2):
        predicted = [int(learner.predict(x.unsqueeze(0))) for x in data.test_x]
        correct, total, confusion = [0] * 6, [0] * 6, torch.zeros(3, 3, dtype=torch.int64)
        for guess, truth in zip(predicted, data.test_y.tolist(), strict=True):
            if truth in learner.classes:
                total[truth] += 1
                correct[truth] += guess == truth
                confusion[truth // 2, guess // 2] += 1
        tasks = point.task + 1 if point.boundary else 0
        assert point.confusion == tuple(map(tuple, confusion[:tasks, :tasks].tolist()))
        assert point.correct == tuple(correct)
        assert point.total == tuple(total)
        assert point.accuracy == pytest.approx(100 * sum(correct) / sum(total))
    assert confusion.diagonal().sum() < confusion.sum(), "some take one task for another"


def test_a_sample_is_scored_without_regard_to_its_neighbours(data, stream):
    learner = make_learner(memory=20, net=nn.Sequential(nn.Flatten(), nn.BatchNorm1d(10)))
    list(evaluate(learner, stream))
    together = learner.scores(data.test_x)
    apart = torch.cat([learner.scores(x.unsqueeze(0)) for x in data.test_x])
    assert torch.allclose(together, apart, atol=1e-5)


def test_only_test_images_of_classes_seen_so_far_are_scored(stream):
    for point in evaluate(make_learner(memory=20), stream):
        seen = {label for group in stream.tasks[: point.task + 1] for label in group}
        assert point.total == tuple(7 if label in seen else 0 for label in range(6))
        assert all(count <= total for count, total in zip(point.correct, point.total, strict=True))


def test_an_unseen_class_of_the_current_task_is_not_scored(data):
    stream = ClassIncremental(data, tasks=1, batch=1, seed=0)
    learner = make_learner(onepass.Finetune)
    for point in evaluate(learner, stream, every=1):
        assert {label for label in range(6) if point.total[label]} == set(learner.classes)


def test_a_class_without_test_images_counts_for_nothing(data):
    held = data.test_y != 1
    bare = onepass.Dataset(
        "bare", data.train_x, data.train_y, data.test_x[held], data.test_y[held], data.class_names
    )
    *_, last = evaluate(make_learner(memory=20), ClassIncremental(bare, tasks=3, batch=4))
    assert last.total == (7, 0, 7, 7, 7, 7)


def test_no_score_may_come_before_a_class_that_has_test_images(data):
    order = ClassIncremental(data, tasks=3, batch=1, seed=1)
    first = order.batch(0)[1]
    came = next(at for at in range(len(order)) if order.batch(at)[1] != first)
    held = data.test_y != first
    bare = onepass.Dataset(
        "bare", data.train_x, data.train_y, data.test_x[held], data.test_y[held], data.class_names
    )
    stream = ClassIncremental(bare, tasks=3, batch=1, seed=1)
    with pytest.raises(InputError, match=f"at least {came + 1}, not {came}: no class of earlier"):
        list(evaluate(make_learner(memory=20), stream, every=came))
    assert next(iter(evaluate(make_learner(memory=20), stream, every=came + 1))).step == came + 1


def test_a_learner_with_more_labels_is_scored_on_those_of_the_dataset(stream):
    learner = make_learner(memory=20)
    learner.learn(torch.zeros(2, 10), [77, 78])
    *_, last = evaluate(learner, stream)
    assert last.total == (7,) * 6
    assert last.boundary


def test_classes_outside_of_all_tasks_are_left_out_of_the_confusion(data):
    """Nor are labels that the learner has learned from other data."""
    order = [torch.nonzero(data.train_y < 2).flatten(), torch.nonzero(data.train_y >= 2).flatten()]
    learner, predictions = make_learner(memory=20), [0, 3, 5, 77, -5]
    learner.learn(torch.zeros(2, 10), [77, -5])
    learner.predict = lambda x: torch.tensor(predictions * len(x))[: len(x)]
    *_, last = evaluate(learner, onepass.Stream(data, order, tasks=[[0, 1], [2, 3]]))
    assert last.total == (7,) * 6
    confusion = [[0, 0], [0, 0]]
    for truth, guess in zip(sorted(data.test_y.tolist()), predictions * 42, strict=False):
        if truth < 4 and guess in (0, 3):
            confusion[truth // 2][guess // 2] += 1
    assert last.confusion == tuple(map(tuple, confusion))


def test_scoring_changes_no_bit_of_the_learner(stream):
    """The running statistics of BatchNorm stay too."""
    net, hashes = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(10)), set()
    for every, prequential in ((None, False), (1, False), (3, True)):
        learner = make_learner(memory=20, net=net)
        list(evaluate(learner, stream, every=every, prequential=prequential))
        hashes.add(learner.state_sha256())
    assert len(hashes) == 1


# ---- prequential scores


def test_prequential_scores_equal_those_of_a_plain_loop(stream):
    learner, hits, tried, expected = make_learner(memory=20), 0, 0, []
    for step, (x, y) in enumerate(stream):
        if step:
            hits += int((learner.predict(x) == y).sum())
        tried += len(y)
        if stream.starts_task(step):
            learner.new_task()
        learner.learn(x, y)
        expected.append((hits, tried))
    ticks = list(learn_and_score(make_learner(memory=20), stream, prequential=True))
    assert [(tick.hits, tick.tried) for tick in ticks] == expected
    assert ticks[-1].tried == 54
    assert ticks[-1].prequential == pytest.approx(100 * hits / 54)
    assert 0 < hits < 54


def test_there_is_no_prequential_score_by_default(stream):
    *_, last = evaluate(make_learner(memory=20), stream)
    assert last.prequential is None
    assert (last.hits, last.tried) == (0, 0)


# ---- continuing


@pytest.mark.parametrize("stop", [1, 4, 5, 9, 14])
def test_continuing_from_a_tick_equals_one_uninterrupted_loop(stream, stop):
    whole, parted = make_learner(memory=20), make_learner(memory=20)
    expected = [untimed(tick) for tick in learn_and_score(whole, stream, every=3, prequential=True)]
    found = []
    for tick in learn_and_score(parted, stream, every=3, prequential=True):
        found.append(tick)
        if tick.step == stop:
            break
    rest = list(learn_and_score(parted, stream, every=3, prequential=True, start=found[-1]))
    assert [untimed(tick) for tick in found + rest] == expected
    assert rest[0].seconds > found[-1].seconds
    assert parted.state_sha256() == whole.state_sha256()


def test_continuing_from_the_end_does_nothing(stream):
    learner = make_learner(memory=20)
    *_, last = learn_and_score(learner, stream)
    before = learner.state_sha256()
    assert list(learn_and_score(learner, stream, start=last)) == []
    assert list(learn_and_score(learner, stream, start=Tick(15, 2, 1.0))) == []
    assert learner.state_sha256() == before


# ---- failures


@pytest.mark.parametrize("after", [0, 7])
def test_a_nan_loss_stops_the_run_and_names_the_step(stream, after):
    learner = make_learner(onepass.Finetune, net=Broken(after))
    found = []
    with pytest.raises(TrainingError, match=r"loss of 'finetune' is nan at step \d+"):
        for point in evaluate(learner, stream):
            found.append(point.step)
    assert found == [step for step in (5, 10, 15) if step <= after]


def test_an_infinite_loss_stops_the_run(stream):
    learner = make_learner(onepass.Finetune, lr=1e30, optimizer="sgd", weight_decay=0.0)
    with pytest.raises(TrainingError, match="loss of 'finetune' is"):
        list(evaluate(learner, stream, every=1))


def test_a_task_without_test_samples_is_named():
    data = load("synthetic", classes=4, shape=(6,), seed=0)
    part = replace(data, test_x=data.test_x[data.test_y < 2], test_y=data.test_y[data.test_y < 2])
    with pytest.raises(InputError, match="no test samples of task 2"):
        list(evaluate(Finetune(seed=0), ClassIncremental(part, tasks=2)))


def test_a_batchnorm_that_its_user_froze_stays_frozen():
    body = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5).eval())
    data = load("synthetic", classes=4, shape=(6,), seed=0)
    learner = Finetune(net=body, seed=0)
    learner.learn(data.train_x[:9], data.train_y[:9])
    learner.predict(data.test_x)
    learner.learn(data.train_x[9:19], data.train_y[9:19])
    assert torch.equal(learner.model.body[1].running_mean, torch.zeros(5))


def test_arguments_in_the_wrong_order_are_refused():
    stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    with pytest.raises(onepass.InputError, match=r"a learner, then a stream.* a Class"):
        list(onepass.evaluate(stream, onepass.ER(memory=5)))


# ---- iterables of batches


def with_new_task_calls(stream, learner):
    """Yields the stream's batches, and calls `new_task` where a task begins."""
    for step, batch in enumerate(stream):
        if stream.starts_task(step):
            learner.new_task()
        yield batch


@pytest.mark.parametrize("method", [onepass.BiC, onepass.SCR, onepass.IL2A, onepass.RainbowRT])
@pytest.mark.parametrize("every", [None, 5])
def test_the_last_announced_task_of_batches_ends_like_that_of_a_stream(data, stream, method, every):
    """Also if the learner was scored after the last batch, before that was known to be the last."""
    streamed, own = (make_learner(method, memory=20, **method.traits.quick) for _ in range(2))
    *_, expected = evaluate(streamed, stream, every=every)
    *_, last = evaluate(own, with_new_task_calls(stream, own), test=data, every=every)
    assert own._task_ended
    assert own.state_sha256() == streamed.state_sha256()
    assert (last.step, last.accuracy) == (expected.step, expected.accuracy)
    assert last.seconds > 0


def test_a_method_without_training_at_task_ends_is_scored_once_after_the_last_batch(data, stream):
    own = make_learner(memory=20)
    points = evaluate(own, with_new_task_calls(stream, own), test=data, every=5)
    assert [point.step for point in points] == [5, 10, 15]


def test_inferred_tasks_of_batches_are_not_ended(data, stream):
    own = make_learner(onepass.BiC, memory=20, **onepass.BiC.traits.quick)
    list(evaluate(own, list(stream), test=data))
    assert not own._task_ended


# ---- methods that train before they are scored


@dataclass(kw_only=True, eq=False)
class Late(Finetune):
    """A learner whose traits say that it trains before it is scored."""

    traits: ClassVar[Traits] = replace(Finetune.traits, trains_to_score=True)


def test_a_method_that_trains_before_scoring_is_scored_at_the_end_only(stream):
    points = list(evaluate(make_learner(Late), stream))
    assert [(point.step, point.task, point.boundary) for point in points] == [(15, 2, True)]
    ticks = list(learn_and_score(make_learner(Late), stream))
    assert [tick.step for tick in ticks] == list(range(1, 16))
    assert [isinstance(tick, Point) for tick in ticks] == [False] * 14 + [True]


@pytest.mark.parametrize("every", [1, 4, 100])
def test_with_every_such_a_method_is_also_scored_then_and_at_task_ends(stream, every):
    steps = [point.step for point in evaluate(make_learner(Late), stream, every=every)]
    assert steps == sorted({5, 10, 15} | set(range(every, 16, every)))


def test_prequential_scores_of_such_a_method_are_refused(data, stream):
    """GDumb would fit a new network before each batch."""
    for followed, test in ((stream, None), (list(stream), data)):
        late = make_learner(Late)
        with pytest.raises(InputError, match="'finetune' trains whenever it is scored"):
            list(evaluate(late, followed, test=test, prequential=True))
        assert not late.steps


# ---- times


def test_training_scoring_and_capture_are_timed_apart(stream, monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(sys.modules["onepass.evaluation.loop"], "time", clock)

    class Slowly(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            now[0] += 100
            return self.net(x)

    @dataclass(kw_only=True, eq=False)
    class Slow(Finetune):
        """A step takes 1 second and its capture 1/4; the end of a task 10; making the scorer 1000,
        and its scores 100."""

        def step(self, x, y):
            now[0] += 1.25
            self.trainer._engine.capture_seconds += 0.25
            return super().step(x, y)

        def on_task_end(self):
            now[0] += 10

        def scorer(self):
            now[0] += 1000
            return Slowly(super().scorer())

    class Watching(Listener):
        """The hook `stepped` takes half a second, `scored` a million."""

        def stepped(self, learner, step):
            now[0] += 0.5

        def scored(self, point):
            now[0] += 1e6

    ticks = []
    for tick in learn_and_score(make_learner(Slow), stream, every=4, listener=Watching()):
        ticks.append(tick)
        now[0] += 1e6  # the time that callers spend on a tick does not count
    scored = [tick.step for tick in ticks if isinstance(tick, Point)]
    assert scored == [4, 5, 8, 10, 12, 15]
    for tick in ticks:
        assert tick.seconds == 1.5 * tick.step + 10 * (tick.step // 5)
        assert tick.capture == 0.25 * tick.step
        assert tick.scoring == 1100 * sum(step <= tick.step for step in scored)

    learner = make_learner(Slow)
    list(learn_and_score(learner, stream))
    start = Tick(5, 0, seconds=7.0, scoring=3.0, capture=2.0)
    on = next(learn_and_score(learner, stream, start=start))
    assert (on.step, on.seconds, on.scoring, on.capture) == (6, 8.0, 3.0, 2.25)


def test_the_error_of_a_first_step_is_its_own(stream):
    @dataclass(kw_only=True, eq=False)
    class Fails(Finetune):
        def step(self, x, y):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(evaluate(make_learner(Fails), stream))
