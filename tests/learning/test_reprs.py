"""Tests the representations of objects in a prompt or notebook: a line or a small table, never
arrays."""

from dataclasses import replace

import pytest
from torch import nn

import onepass

DATA = onepass.load("synthetic", shape=(20,))
STREAM = onepass.ClassIncremental(DATA, tasks=2, batch=60, seed=0)


def learned():
    learner = onepass.ER(memory=30, device="cpu", mean=(0.25,) * 20, std=(1.5,) * 20)
    learner.learn(*STREAM.batch(0))
    return learner


POINT = next(onepass.evaluate(learned(), STREAM))


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (DATA, ["'synthetic'", "600 training and 200 test vectors of 20", "10 classes"]),
        (STREAM, ["ClassIncremental", "'synthetic'", "2 tasks", "10 steps"]),
        (learned(), ["ER(", "memory=30", "mean=(0.25, 0.25, 0.25, ...: 20)", "after 1 steps"]),
        (POINT, ["Point", "step=5", "task=0", "classes=5", "accuracy="]),
        (replace(POINT, correct=(1, 0, 0), total=(1, 3, 0)), ["classes=2", "accuracy=25.0"]),
        (learned().snapshot(), ["Predictor", "5 classes", "20"]),
        (onepass.GSA(memory=30).learn(*STREAM.batch(0)), ["<Step loss=", "T1="]),
    ],
    ids=["dataset", "stream", "learner", "point", "counted point", "snapshot", "step"],
)
def test_an_object_has_a_one_line_repr(value, texts):
    line = repr(value)
    assert len(line.splitlines()) == 1 and len(line) < 160
    assert all(text in line for text in texts)


@pytest.mark.parametrize("value", [DATA, STREAM, learned(), POINT, learned().kept])
def test_a_notebook_displays_a_small_table(value):
    table = value._repr_html_()
    assert table.startswith("<table>") and len(table) < 1000


def test_a_point_displays_its_measurements_only():
    batches = [STREAM.batch(step) for step in range(3)]
    (point,) = onepass.evaluate(learned(), batches, prequential=True)
    assert repr(point) == f"<Point step=3, task=0, prequential={point.prequential:.1f}>"
    (both,) = onepass.evaluate(learned(), batches, test=DATA, prequential=True)
    assert "classes=" in repr(both) and "accuracy=" in repr(both) and "prequential=" in repr(both)


def test_a_learner_displays_only_settings_that_differ_from_the_defaults():
    assert repr(onepass.GSA()) == "GSA()"
    assert repr(onepass.GSA(lr=5e-4, mirror=True)) == "GSA(lr=0.0005, mirror=True)"
    assert repr(onepass.ER(net=nn.Linear(64, 8))) == "ER(net=<Linear>)"


def test_names_are_escaped_in_html():
    names = ("<script>", *DATA.class_names[1:])
    hostile = replace(DATA, name="<b>\x1b[31m", class_names=names)
    for learner in (hostile, onepass.ClassIncremental(hostile, tasks=2)):
        assert "\x1b" not in repr(learner) + learner._repr_html_()
        assert "<b>" not in learner._repr_html_() and "&lt;b&gt;" in learner._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()
