"""How often a run is scored by default, and what scoring costs, counted in images."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import onepass
from onepass import ClassIncremental
from onepass.base.parts import ImageCount
from onepass.data.base import Dataset
from onepass.evaluation import schedule
from onepass.evaluation.schedule import ScoredSamples, default_every, scoring_cost, twentieth
from onepass.streams import Blurry, LongTail


def dataset(train, test, shape=(1,)):
    """Returns blank samples, with these numbers of each class for training and testing."""
    labels = torch.arange(len(train))
    y, test_y = (labels.repeat_interleave(torch.tensor(counts)) for counts in (train, test))
    blank = torch.zeros(1, dtype=torch.uint8 if len(shape) == 3 else torch.float32)
    x, test_x = (blank.expand(len(given), *shape) for given in (y, test_y))
    constants = {"mean": (0.0,) * shape[0], "std": (1.0,) * shape[0]}
    return Dataset("a dataset", x, y, test_x, test_y, tuple(map(str, labels)), **constants)


def training(stream):
    """Returns the forward passes of plain replay, counted step by step."""
    return sum(3 * (len(y) + 64) for _, y in stream)


COUNTS = st.lists(st.integers(1, 40), min_size=10, max_size=10)


@st.composite
def streams(draw):
    data = dataset(draw(COUNTS), draw(COUNTS))
    options = {"tasks": draw(st.integers(1, 10)), "batch": draw(st.integers(1, 30))}
    options["class_order"] = draw(st.sampled_from(["natural", "shuffled"]))
    return draw(st.sampled_from([ClassIncremental, Blurry, LongTail]))(data, **options)


@pytest.fixture
def all_are_long(monkeypatch):
    monkeypatch.setattr(schedule, "LONG", 0)


# ---- the rule

A_RULE = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@A_RULE
@given(streams())
def test_scoring_costs_a_fifth_at_most_or_no_more_than_at_task_ends(all_are_long, stream):
    every = default_every(stream)
    count = ScoredSamples(stream).count
    fewest = count(len(stream))
    allowed = max(training(stream) / 5, fewest)
    assert count(every or twentieth(stream)) <= allowed
    if every is not None:
        assert every > twentieth(stream)
        smaller = range(twentieth(stream), every if len(stream) // every >= 3 else 0)
        assert all(count(number) > allowed for number in smaller), "not the smallest"
        assert len(stream) // every >= 3 or count(every) == fewest


@A_RULE
@given(streams(), st.integers(2, 5))
def test_more_test_samples_are_never_scored_more_often(all_are_long, stream, times):
    data = stream.dataset
    larger = replace(data, test_x=data.test_x.repeat(times, 1), test_y=data.test_y.repeat(times))
    same = {name: value for name, value in stream.spec.items() if name != "stream"}
    grown = type(stream)(larger, **same)
    before, after = (default_every(each) or twentieth(each) for each in (stream, grown))
    assert after >= before


@pytest.mark.parametrize("tasks", [1, 5])
@pytest.mark.parametrize("every", [7, 29, 146])
def test_counted_samples_are_those_that_a_run_scores(tasks, every):
    stream = ClassIncremental(onepass.load("digits"), tasks=tasks)
    points = onepass.evaluate(onepass.Finetune(device="cpu"), stream, every=every)
    assert ScoredSamples(stream).count(every) == sum(sum(point.total) for point in points)


def test_classes_that_come_early_are_counted_from_their_first_task():
    stream = Blurry(onepass.load("digits"), tasks=5, n=0, m=50)
    points = [*onepass.evaluate(onepass.Finetune(device="cpu"), stream, every=10)]
    scored = sum(sum(point.total) for point in points)
    assert scored <= ScoredSamples(stream).count(10) <= 1.02 * scored


@pytest.mark.parametrize(
    ("classes", "train", "test", "shape", "tasks", "share"),
    [
        (10, 6000, 1000, (1, 28, 28), 5, 0.09),  # MNIST
        (10, 5000, 1000, (3, 32, 32), 5, 0.108),  # CIFAR10
        (100, 500, 100, (3, 32, 32), 10, 0.099),  # CIFAR100
        (200, 500, 50, (3, 64, 64), 100, 0.227),  # TinyImageNet, all of it at task ends
    ],
)
def test_the_papers_datasets_are_scored_twenty_times(classes, train, test, shape, tasks, share):
    stream = ClassIncremental(dataset([train] * classes, [test] * classes, shape), tasks=tasks)
    scored = ScoredSamples(stream).count(twentieth(stream))
    assert scored / training(stream) == pytest.approx(share, abs=0.001)
    assert default_every(stream) is None
    if share > 0.2:
        assert scored == ScoredSamples(stream).at_task_ends


def test_few_training_images_beside_many_test_images_are_scored_less_often():
    """40 classes of 60 photos, with 50 to test: scoring took more than half of training's time."""
    photos = dataset([60] * 40, [50] * 40, (3, 64, 64))
    assert default_every(ClassIncremental(photos, tasks=5)) == 48  # at task ends
    assert default_every(ClassIncremental(photos, tasks=10)) == 24
    assert default_every(LongTail(photos, tasks=10, rho=10.0)) == 98  # all steps


def test_a_short_run_keeps_its_twenty_points(monkeypatch):
    stream = ClassIncremental(onepass.load("digits"), tasks=5, batch=50)
    assert default_every(stream) is None
    monkeypatch.setattr(schedule, "LONG", 0)
    assert default_every(stream) == 6


# ---- what it will cost


def cost(learner, stream, every=10, prequential=False):
    return scoring_cost(learner, stream, every, prequential=prequential)


def test_the_cost_is_counted_for_the_method(all_are_long):
    stream = ClassIncremental(onepass.load("digits"), tasks=1)  # 145 steps, 355 tested
    scored = 15 * 355
    fewest = "task ends only: --every 145"
    assert cost(onepass.ER(memory=9), stream) == (
        f"scores {scored:,} test images beside 10,730 trained ones: about 0.17 of the training's "
        f"cost (0.01 at {fewest})"
    )
    assert f"about {scored / (3 * 1450):.2f} of" in cost(onepass.Finetune(), stream)
    taught = onepass.ER(memory=9, average=0.9, distil=1.0, repeats=2)
    assert f"about {scored / (2 * 4 * 10730):.2f} of" in cost(taught, stream)
    doubled = cost(onepass.ER(memory=9, mirror_scores=True), stream, prequential=True)
    assert f"scores {2 * (scored + 1442):,} test images" in doubled
    assert "task ends" not in cost(onepass.ER(memory=9), stream, every=145)


def test_a_short_run_says_nothing():
    assert cost(onepass.ER(memory=9), ClassIncremental(onepass.load("digits"))) == ""


@dataclass(kw_only=True, eq=False)
class Uncounted(onepass.Finetune):
    """A method that counts no image."""

    def cost(self, batch):
        return ImageCount(0)


@pytest.mark.parametrize("learner", [Uncounted(), onepass.GDumb(memory=9)])
def test_a_method_whose_steps_count_no_trained_image_has_no_share(learner, all_are_long):
    assert cost(learner, ClassIncremental(onepass.load("digits"))) == ""
