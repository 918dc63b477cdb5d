"""A learner's numbers are its own, whatever the program around it has set or forked."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import onepass
from onepass.learning import registry

DATA = onepass.load("digits")
BATCHES = [(DATA.train_x[n : n + 10], DATA.train_y[n : n + 10]) for n in range(0, 60, 10)]


def learned(method="er", **settings):
    learner = registry.get(method).learner(**{"memory": 20, **settings})
    for x, y in BATCHES:
        learner.learn(x, y)
    return learner


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("method", ["er", "gdumb"])
def test_autocast_changes_no_bit(method):
    plain = learned(method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = learned(method)
        assert torch.equal(inside.scores(DATA.test_x), plain.scores(DATA.test_x))
        snapshot = inside.snapshot()
        assert torch.equal(snapshot.scores(DATA.test_x), plain.scores(DATA.test_x))
        assert torch.is_autocast_enabled("cpu")
    assert inside.state_sha256() == plain.state_sha256()


@pytest.mark.parametrize("method", ["er", "gdumb", "scr"])
def test_the_default_dtype_changes_no_bit(method, float64, tmp_path):
    inside = learned(method)
    scores = inside.scores(DATA.test_x)
    inside.save(tmp_path / "model.pt")
    opened = onepass.open(tmp_path / "model.pt")
    assert opened.state_sha256() == inside.state_sha256()
    assert torch.get_default_dtype() is torch.float64
    torch.set_default_dtype(torch.float32)
    plain = learned(method)
    assert inside.state_sha256() == plain.state_sha256()
    assert scores.dtype is torch.float32 and torch.equal(scores, plain.scores(DATA.test_x))


FORK = """
    import os, signal, torch, onepass
    torch.set_num_threads(2)
    x, y = torch.randn(64, 2000), [0, 1] * 32  # so large that torch divides most of the work
    learner = onepass.ER(memory=20)
    learner.learn(x, y)
    learner.save("saved.pt")
    learner.learn(x, y)  # no scores of this state are cached
    calls = {
        "learn": lambda: learner.learn(x, y),
        "learn anew": lambda: onepass.ER(memory=20).learn(x, y),
        "predict": lambda: learner.predict(x),
        "snapshot": lambda: learner.snapshot(),
        "save": lambda: learner.save("again.pt"),
        "open": lambda: onepass.open("saved.pt").predict(x),
    }
    for name, call in calls.items():
        if os.fork() == 0:
            signal.alarm(20)  # a child that waits for threads it does not have waits forever
            THREADS
            try:
                call()
            except onepass.InputError as problem:
                assert "this process was forked" in str(problem)
                os._exit(3)
            os._exit(0)
        print(name, os.waitstatus_to_exitcode(os.wait()[1]), sep=": ")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize(
    ("threads", "status"),
    [("pass", 3), ("torch.set_num_threads(1)", 0)],
    ids=["several threads", "one thread"],
)
def test_a_forked_child_answers_or_says_why_not(threads, status, tmp_path):
    code = textwrap.dedent(FORK.replace("THREADS", threads))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    calls = ("learn", "learn anew", "predict", "snapshot", "save", "open")
    assert done.stdout.splitlines() == [f"{call}: {status}" for call in calls], done.stderr


@pytest.mark.parametrize(
    ("method", "settings"),
    [("gdumb", {}), ("scr", {}), ("er", {"norms": "memory", "net": "resnet18-slim"})],
)
def test_scores_that_were_made_before_saving_are_counted_once(method, settings, tmp_path):
    learner = learned(method, **settings)
    learner.scores(DATA.test_x[:5])
    counts = learner.trainer.image_counts
    for _ in range(2):
        learner.save(tmp_path / "model.pt")
        learner = onepass.open(tmp_path / "model.pt")
    learner.scores(DATA.test_x[:5])
    assert learner.trainer.image_counts == counts and counts
    learner.learn(*BATCHES[0])
    learner.scores(DATA.test_x[:5])
    assert learner.trainer.image_counts != counts  # another state has a scorer of its own
