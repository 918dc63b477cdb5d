"""The scripts in examples/ run unchanged, and their methods keep the contract."""

import importlib
import math
import runpy
import sys
from pathlib import Path

import pytest
import torch
from isolated_registries import isolate_registries
from tiny_learners import batches, small

from onepass.base.parts import Output
from onepass.functional.losses import cross_entropy
from onepass.learning.registry import METHODS
from onepass.nets import NETWORKS
from onepass.streams import STREAMS
from onepass.tools.checks import CHECKS, NEEDS_GPU, check_method

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_prints_an_accuracy(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    isolate_registries(monkeypatch, METHODS, NETWORKS, STREAMS)
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


@pytest.fixture
def example(monkeypatch):
    """Returns a function that imports an example afresh; each test undoes its registrations."""
    isolate_registries(monkeypatch, METHODS)
    monkeypatch.syspath_prepend(EXAMPLES[0].parent)

    def imported(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return imported


# ---- learning without forgetting

TEACHER_CHECKS = (
    "a_saved_learner_goes_on_exactly",
    "declared_images_are_counted",
    "kept_bytes_are_declared",
    "the_head_grows",
)


@pytest.mark.parametrize("name", TEACHER_CHECKS)
def test_a_teacher_is_saved_counted_declared_and_grown(name, example):
    CHECKS[name](example("lwf").LwF)


@pytest.mark.slow
def test_a_method_with_a_teacher_keeps_the_contract(example):
    """Only checks that need a GPU or a memory are exempt. Passes and bytes of the previous network
    are counted and declared."""
    outcome = check_method(example("lwf").LwF)
    assert not outcome.failed
    assert set(outcome.exempt) - set(NEEDS_GPU) == {"memory_reaches_the_gradient"}


# ---- proxy-based contrastive replay


def naive_pcr(scores, labels, weights):
    """Returns the paper's loss: each sample against the proxies of all samples' classes, repeats
    included."""
    real = [i for i, weight in enumerate(weights) if weight]
    losses = []
    for i in real:
        total = sum(math.exp(scores[i][labels[k]]) for k in real)
        losses.append(-math.log(math.exp(scores[i][labels[i]]) / total))
    return sum(losses) / len(losses)


def naive_cosine(first, second):
    dot = sum(a * b for a, b in zip(first, second, strict=True))
    return dot / math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))


@pytest.mark.parametrize("memory", [0, 3, 30])
def test_pcr_is_the_double_loop_of_its_paper(memory, example):
    """Features are the inputs. Labels repeat, and draws are padded while the memory is small."""
    learner = small(example("pcr").PCR, memory=memory, temperature=0.5)
    learner.prepare((6,), torch.float32)
    for x, y in batches([[0, 0, 0, 1], [2, 1], [0], [1, 2, 2, 3, 3]]):
        proxies = learner.model.head.weight.tolist()
        held = int(learner.store.size)
        step = learner.learn(x, y)
        stream, replay = step.outputs  # two views of each, which without augmentation are the same
        for sample, scores in zip([*x, *x], stream.logits.tolist(), strict=True):
            expected = [naive_cosine(sample.tolist(), proxy) / 0.5 for proxy in proxies]
            assert scores == pytest.approx(expected, abs=1e-5)
        assert stream.y.tolist() == 2 * [learner.class_index.row_of[label] for label in y.tolist()]
        assert int(replay.weight.sum()) == 2 * min(12, held)
        out = step.together
        expected = naive_pcr(out.logits.tolist(), out.y.tolist(), out.weight.tolist())
        assert step.loss.item() == pytest.approx(expected, rel=1e-5)


def test_pcr_of_one_class_is_a_constant_that_trains_nothing(example):
    """The constant is log n for n samples: here two views of four samples."""
    learner = small(example("pcr").PCR)
    learner.prepare((6,), torch.float32)
    (item,) = batches([[1, 1, 1, 1]])
    assert learner.learn(*item).loss.item() == pytest.approx(math.log(8), rel=1e-6)
    assert learner.model.head.weight.grad.abs().max() < 1e-6


def test_pcr_of_equal_counts_is_the_cross_entropy_among_the_present_classes(example):
    """It exceeds the cross-entropy by log n, for n samples of each class."""
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    out = Output(logits, torch.tensor([0, 3, 1, 1, 0, 3]), torch.ones(6))
    present = torch.tensor([True, True, False, True, False])
    expected = cross_entropy(out, among=present) + math.log(2)
    assert torch.allclose(example("pcr").proxy_contrast(out), expected)


@pytest.mark.slow
def test_pcr_keeps_the_contract(example):
    """PCR was written from docs/extending.md alone. Only checks that need a GPU are left out."""
    outcome = check_method(example("pcr").PCR)
    assert not outcome.failed
    assert set(outcome.exempt) <= set(NEEDS_GPU)


@pytest.mark.parametrize("name", ["declared_images_are_counted", "the_step_stays_on_the_device"])
def test_pcrs_two_views_are_counted_and_its_counts_stay_on_the_device(name, example):
    CHECKS[name](example("pcr").PCR)
