"""Tests that predicting in other threads does not affect learning."""

import itertools
import threading
import time

import pytest
import torch
from torch import nn

from onepass import ER, SCR, InputError, load
from onepass.base.locks import LearnerLock
from onepass.streams import ClassIncremental

DATA = load("synthetic", classes=8, train_per_class=40, test_per_class=10, shape=(3, 6, 6), seed=2)
STEPS = 160


class SmallNet(nn.Module):
    """A network with BatchNorm, whose mode and statistics threads could change."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))).flatten(1)


def small_net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SmallNet()


NET = small_net()


def made(kind=ER, **settings):
    return kind(net=NET, memory=40, replay=16, device="cpu", seed=1, **settings)


def learn(learner, steps=STEPS):
    stream = ClassIncremental(DATA, tasks=4, batch=10, seed=0)
    for step in range(steps):
        if step < len(stream) and stream.starts_task(step):
            learner.new_task()
        learner.learn(*stream.batch(step % len(stream)))
    return learner


def in_threads(count, work):
    """Calls work() repeatedly in several threads. Returns a function that stops them and returns
    the number of calls and the errors."""
    stop, done, problems = threading.Event(), [], []

    def loop():
        try:
            while not stop.is_set():
                work()
                done.append(1)
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=loop) for _ in range(count)]
    for thread in threads:
        thread.start()

    def end():
        stop.set()
        for thread in threads:
            thread.join()
        return len(done), problems

    return end


@pytest.mark.slow
@pytest.mark.parametrize("by", ["learner", "snapshot"])
def test_four_predicting_threads_do_not_affect_a_fifth_that_learns(by):
    alone, watched, x = learn(made()), made(), DATA.test_x[:20]

    def predict():
        if watched.steps:
            (watched if by == "learner" else watched.snapshot()).predict(x)

    end = in_threads(4, predict)
    learn(watched)
    times, problems = end()
    assert not problems
    assert times > 20, "no thread predicted while it learned"
    assert watched.state_sha256() == alone.state_sha256()
    assert all(module.training for module in watched.model.modules())


def test_predicting_threads_agree_and_change_no_mode():
    learner, x = learn(made(), steps=20), DATA.test_x
    scores, answers = learner.scores(x), []
    end = in_threads(4, lambda: answers.append(torch.equal(learner.scores(x), scores)))
    while len(answers) < 40:
        time.sleep(0.01)
    assert not end()[1]
    assert all(answers)
    assert all(module.training for module in learner.model.modules())


def test_predicting_waits_for_a_running_step():
    entered, leave, order = threading.Event(), threading.Event(), []

    class Slow(ER):
        def step(self, x, y):
            if self.steps == 3:
                entered.set()
                leave.wait(10)
                order.append("step")
            return super().step(x, y)

    learner = Slow(net=NET, memory=40, replay=16, device="cpu")
    learn(learner, steps=3)
    teacher = threading.Thread(target=lambda: learner.learn(DATA.train_x[:10], DATA.train_y[:10]))
    asker = threading.Thread(
        target=lambda: (learner.predict(DATA.test_x[:5]), order.append("answer"))
    )
    teacher.start()
    assert entered.wait(10)
    asker.start()
    time.sleep(0.1)
    leave.set()
    teacher.join()
    asker.join()
    assert order == ["step", "answer"]


def test_learning_in_two_threads_at_once_is_refused_and_changes_nothing():
    entered, leave = threading.Event(), threading.Event()

    class Slow(ER):
        def step(self, x, y):
            if self.steps == 3:
                entered.set()
                leave.wait(10)
            return super().step(x, y)

    learner = Slow(net=NET, memory=40, replay=16, device="cpu", seed=1)
    learn(learner, steps=3)
    stream = ClassIncremental(DATA, tasks=4, batch=10, seed=0)
    teacher = threading.Thread(target=lambda: learner.learn(*stream.batch(3)))
    teacher.start()
    assert entered.wait(10)
    for call in (lambda: learner.learn(*stream.batch(4)), learner.new_task, learner.end_task):
        with pytest.raises(InputError, match="learning already"):
            call()
    leave.set()
    teacher.join()
    assert learner.state_sha256() == learn(made(), steps=4).state_sha256()


def test_a_snapshot_of_class_means_predicts_while_learning_goes_on():
    learner, x = learn(made(SCR), steps=30), DATA.test_x
    snapshot, scores = learner.snapshot(), learner.scores(x)
    answers = []
    end = in_threads(2, lambda: answers.append(torch.equal(snapshot.scores(x), scores)))
    for _ in range(20):
        learner.learn(DATA.train_x[:10], DATA.train_y[:10])
        learner.predict(x)  # makes its own class means
    assert not end()[1]
    assert answers and all(answers)


def test_every_thread_gets_its_turn():
    """A thread that predicts in a loop does not keep the others waiting."""
    turns, order, ready = LearnerLock(), [], threading.Barrier(2)

    def ask(name):
        ready.wait()
        for _ in range(50):
            with turns.reading():
                order.append(name)
                time.sleep(0.0005)

    threads = [threading.Thread(target=ask, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changes = sum(first != second for first, second in itertools.pairwise(order))
    assert changes > 40, f"the turns went {order}"


def test_the_lock_is_reentrant():
    turns = LearnerLock()
    with turns.learning(), turns.reading(), turns.reading():
        pass
    with turns.reading():
        pass
