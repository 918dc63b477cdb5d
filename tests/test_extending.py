"""The Python blocks of docs/extending.md form a module, and its methods and probe work."""

import doctest
import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from command import onepass
from isolated_registries import isolate_registries
from tiny_learners import corners, double, small

from onepass import ER, ClassIncremental, evaluate, load
from onepass.evaluation.probes import PROBES
from onepass.functional.losses import sample_cross_entropy
from onepass.learning.registry import METHODS
from onepass.nets import NETWORKS
from onepass.tools.checks import CHECKS, NEEDS_GPU, check_method

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
KINDS = ("MyER", "TwoViews", "CosineER", "EvenER")
STEP_CHECKS = (
    "odd_batches_are_learned",
    "large_logits_do_no_harm",
    "every_parameter_gets_a_gradient",
    "the_head_grows",
    "the_memory_may_take_the_batch_at_once",
    "declared_images_are_counted",
    "an_average_may_teach",
    "the_step_stays_on_the_device",
)


def python_of(page):
    """Returns the Python blocks of a page, joined into one module."""
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))


@pytest.fixture
def page(monkeypatch, tmp_path):
    """Imports the page as a fresh module."""
    isolate_registries(monkeypatch, METHODS, NETWORKS, PROBES)
    (tmp_path / "my_methods.py").write_text(python_of(PAGE))
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("my_methods")
    sys.modules.pop("my_methods", None)


@pytest.mark.parametrize("name", STEP_CHECKS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_on_the_page_keeps_the_contract_of_steps(kind, name, page):
    CHECKS[name](getattr(page, kind))


@pytest.mark.parametrize("net", ["my_methods:make", "centred"])
def test_the_network_on_the_page_makes_its_own_inputs(net, page):
    learner = ER(net=net, memory=5, device="cpu", mean=(0.5,), std=(0.1,))
    learner.prepare((3, 2, 2), torch.uint8)
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    inputs = learner.views.normalise(pixels)
    torch.testing.assert_close(inputs[0, :, 0, 0], torch.tensor([-1.0, -0.6, 1.0]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_on_the_page_keeps_the_whole_contract(kind, page):
    """The shorter ones have no example in their docstring, so one check fails for them."""
    failed = set(check_method(getattr(page, kind)).failed)
    assert failed <= ({"the_file_explains_itself"} if kind != "MyER" else set())


def test_the_closed_form_method_on_the_page_keeps_the_contract(page):
    outcome = check_method(page.ScaledMean)
    assert set(outcome.failed) == set()
    assert set(outcome.exempt) <= set(NEEDS_GPU)
    tests = doctest.DocTestFinder().find(page.ScaledMean, globs=vars(page), name="ScaledMean")
    found = [doctest.DocTestRunner().run(test) for test in tests if test.examples]
    assert [result.failed for result in found] == [0]


def test_strength_weights_the_replay_loss(page):
    learner = small(page.MyER, strength=0.25)
    for seed, labels in enumerate([[0, 1, 1], [1, 0], [2, 0, 1]]):
        step = learner.learn(*corners(labels, torch.Generator().manual_seed(seed)))
        expected = step.terms["stream"] + 0.25 * step.terms["replay"]
        assert torch.allclose(step.loss, expected)
    assert step.terms["replay"] > 0


def test_two_views_differ_in_their_augmentation_only(page):
    stream = ClassIncremental(load("digits"), tasks=5)
    x, y = stream.batch(0)
    plain, drawn = (
        page.TwoViews(augment=augment, device="cpu", seed=1).learn(x, y)
        for augment in ("none", "crop-grey")
    )
    first, second = plain.outputs
    assert torch.equal(first.logits, second.logits)
    first, second = drawn.outputs
    assert torch.equal(first.y, second.y)
    assert not torch.isclose(first.logits, second.logits).any(dim=1).all()


def test_a_cosine_head_has_the_given_scale(page):
    """Features are the inputs here, so the logits follow from the rows of the head."""
    learner = small(page.CosineER, temperature=0.05)
    x, y = corners([0, 1, 1, 2], torch.Generator().manual_seed(3))
    learner.prepare((6,), torch.float32)
    rows = learner.model.head.weight.detach().clone()
    (stream, _) = learner.learn(x, y).outputs
    assert torch.allclose(
        stream.logits, 20 * torch.cosine_similarity(x.unsqueeze(1), rows, dim=2), atol=1e-5
    )


def test_classes_count_equally_and_padding_does_not_count(page):
    learner = small(page.EvenER)
    for seed, labels in enumerate([[0, 0, 0, 1], [1, 2], [0, 2, 2]]):
        step = learner.learn(*corners(labels, torch.Generator().manual_seed(seed)))
        out = step.together
        assert (out.weight == 0).any()  # 12 are drawn, and the memory holds fewer
        losses = sample_cross_entropy(out, among=learner.seen).tolist()
        of_class = {}
        for y, weight, loss in zip(out.y.tolist(), out.weight.tolist(), losses, strict=True):
            if weight:
                of_class.setdefault(y, []).append(loss)
        means = double([sum(losses) / len(losses) for losses in of_class.values()])
        assert step.loss.item() == pytest.approx(means.mean().item(), rel=1e-5)


def test_the_probe_records_the_mean_loss_between_scores(page):
    probe, learner = page.MeanLoss(), small(ER, augment="none", net="auto", lr=0.01)
    other, losses, expected = page.MeanLoss(), [], []
    learn = learner.learn

    def learn_and_note(x, y):
        step = learn(x, y)
        losses.append(float(step.loss))
        return step

    learner.learn = learn_and_note
    stream = ClassIncremental(load("digits"), tasks=5)
    for _ in evaluate(learner, stream, listeners=[probe]):
        expected.append(sum(losses) / len(losses))
        losses.clear()
    recorded = [re.search(r'"loss": ([\d.]+)', line)[1] for line in probe.take_lines()]
    assert list(map(float, recorded)) == pytest.approx(expected)
    probe.stepped(learner, learn(*stream.batch(0)))
    other.load_state_dict(probe.state_dict())
    assert other.losses == probe.losses != []


def test_the_command_on_the_page_writes_the_lines_of_the_probe(page, tmp_path):
    line = "onepass run my-er --import my_methods --probe mean-loss"
    assert line in PAGE.read_text()
    small_run = ("--dataset", "synthetic", "--batch", 30, "--device", "cpu", "--out", "runs")
    assert onepass(*line.split()[1:], *small_run).status == 0
    (lines,) = tmp_path.glob("runs/*/mean-loss.jsonl")
    assert '"loss": ' in lines.read_text()
