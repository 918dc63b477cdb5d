"""Tests when a step is captured. Real captures need a GPU and are among the checks of every method.
Here the host replays a recording instead."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.base.parts import Step
from onepass.learning.execution import WARM_UP, EagerEngine, GraphEngine

RESET = "reset"


class Recording:
    """A fake graph, which knows only the tensors of its capture."""

    def __init__(self, engine, step, x, y):
        self.engine, self.play = engine, lambda: step(x, y)

    def replay(self):
        self.engine.step = self.play()
        terms = self.engine.step.terms.values()
        self.engine.reported = torch.stack([self.engine.step.loss, *terms])


class OnHost(GraphEngine):
    def __init__(self):
        super().__init__(())
        self.log = []

    def _run_eagerly(self, step, x, y):
        self.log.append("eager")
        return step(x, y)

    def _capture(self, step, x, y):
        self.log.append("capture")
        return Recording(self, step, x, y)


@pytest.fixture(autouse=True)
def streams_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)


def adding():
    """A step with a memory of earlier batches."""
    total = torch.zeros(())

    def step(x, y):
        total.add_((x * y).sum())
        return Step(total.clone(), {"rows": torch.tensor(float(len(x)))}, ())

    return step


def run(engine, sizes):
    """Returns the losses and terms for batches of these sizes, with resets between some."""
    step, found = adding(), []
    for number, size in enumerate(sizes):
        if size == RESET:
            engine.reset()
            continue
        x = torch.arange(size) + float(number)
        done = engine.run(step, x, torch.full((size,), 2.0 + number))
        found.append((done.loss.item(), done.terms["rows"].item()))
    return found


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from([1, 2, 2, 2, 2, 3, 3, 3, RESET]), max_size=40))
def test_for_any_batch_sizes_steps_equal_those_of_the_eager_engine(sizes):
    assert run(OnHost(), sizes) == run(EagerEngine(), sizes)


def test_a_step_is_captured_once_after_a_few_runs():
    engine = OnHost()
    run(engine, [10] * 20)
    assert engine.log == ["eager"] * WARM_UP + ["capture"]


def test_occasional_short_batches_run_eagerly_and_keep_the_graph():
    engine = OnHost()
    run(engine, [10] * 8 + [4] + [10] * 8 + [7] + [10] * 8)
    assert engine.log == ["eager"] * WARM_UP + ["capture", "eager", "eager"]


def test_a_first_batch_of_another_size_does_not_prevent_the_capture():
    engine = OnHost()
    run(engine, [5] + [10] * 20)
    assert engine.log == ["eager"] * (1 + WARM_UP) + ["capture"]


def test_a_lasting_change_of_batch_size_is_captured_again():
    engine = OnHost()
    run(engine, [10] * 8 + [32] * 8)
    assert engine.log == (["eager"] * WARM_UP + ["capture"]) * 2


def test_after_a_reset_the_next_step_is_captured():
    engine = OnHost()
    run(engine, [10] * 8 + [RESET] + [10] * 8)
    assert engine.log == ["eager"] * WARM_UP + ["capture", "capture"]


def test_a_changed_step_runs_eagerly_before_its_capture():
    engine = OnHost()
    run(engine, [10] * 8)
    engine.reset(other_step=True)
    run(engine, [10] * 8)
    assert engine.log == (["eager"] * WARM_UP + ["capture"]) * 2


def test_a_failed_capture_leaves_no_graph_of_another_size(monkeypatch):
    engine = OnHost()
    run(engine, [10] * 8)

    def fail(step, x, y):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine, "_capture", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(engine, [32] * 8)
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    assert run(engine, [32] * 4) == run(EagerEngine(), [32] * 4)
