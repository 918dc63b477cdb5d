"""i-Blurry streams: disjoint classes stay in their task, blurry ones also come in the others."""

from collections import Counter

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import onepass
from onepass import ER, Blurry, ClassIncremental, Dataset, InputError, LongTail, evaluate

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def dataset(counts, seed=0):
    """Returns images of one pixel in random order of classes."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
    x = torch.zeros(len(y), 1, 1, 1, dtype=torch.uint8)
    return Dataset("fake", x, y, x, y, tuple(map(str, range(len(counts)))))


def contents(stream):
    """Returns the indices of every task."""
    tasks = [[] for _ in stream.tasks]
    for step in range(len(stream)):
        tasks[stream.task_of(step)] += stream.indices(step).tolist()
    return tasks


def table(stream):
    """Returns the number of samples of each class in each task."""
    labels = stream.dataset.train_y
    counts = [Counter(labels[task].tolist()) for task in contents(stream)]
    return {label: [count[label] for count in counts] for label in range(stream.dataset.classes)}


def home(stream, label):
    return next(task for task, group in enumerate(stream.tasks) if label in group)


@st.composite
def streams(draw):
    counts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    chosen = {
        "tasks": draw(st.integers(1, len(counts))),
        "batch": draw(st.integers(1, 12)),
        "n": draw(st.floats(0, 100)),
        "m": draw(st.floats(0, 100)),
        "class_order": draw(st.sampled_from(["natural", "shuffled"])),
        "seed": draw(st.integers(0, 1000)),
    }
    try:
        return Blurry(dataset(counts), **chosen)
    except InputError as problem:
        assert "no samples" in str(problem)
        assert chosen["m"] >= 50
        return reject()


@PROPERTY
@given(streams())
def test_every_sample_comes_exactly_once(stream):
    found = sorted(index for task in contents(stream) for index in task)
    assert found == list(range(len(stream.dataset.train_y)))


@PROPERTY
@given(streams())
def test_no_batch_is_empty_or_too_long(stream):
    sizes = {len(stream.indices(step)) for step in range(len(stream))}
    assert min(sizes) >= 1
    assert max(sizes) <= stream.spec["batch"]


@PROPERTY
@given(streams())
def test_disjoint_classes_come_in_their_own_task_only(stream):
    counts = torch.bincount(stream.dataset.train_y).tolist()
    for label in stream.derived["disjoint"]:
        wanted = [0] * len(stream.tasks)
        wanted[home(stream, label)] = counts[label]
        assert table(stream)[label] == wanted


@PROPERTY
@given(streams())
def test_blurry_classes_have_m_per_cent_elsewhere_evenly(stream):
    counts = torch.bincount(stream.dataset.train_y).tolist()
    for label in set(range(len(counts))) - set(stream.derived["disjoint"]):
        there = table(stream)[label]
        here = there.pop(home(stream, label))
        if there:
            assert abs(sum(there) - counts[label] * stream.spec["m"] / 100) <= 0.5
            assert max(there) - min(there) <= 1
        assert here + sum(there) == counts[label]


def test_a_fifth_of_half_of_the_classes_visits_the_other_tasks():
    stream = Blurry(dataset([100] * 10), tasks=5, n=50, m=20)
    assert len(stream.derived["disjoint"]) == 5
    for label, there in table(stream).items():
        blurry = label not in stream.derived["disjoint"]
        wanted = [5 if blurry else 0] * 5
        wanted[label // 2] = 80 if blurry else 100
        assert there == wanted


@pytest.mark.parametrize(("n", "number"), [(0, 0), (10, 1), (50, 5), (70, 7), (100, 10)])
def test_n_per_cent_of_the_classes_are_disjoint(n, number):
    assert len(Blurry(dataset([4] * 10), n=n).derived["disjoint"]) == number


@pytest.mark.parametrize("percent", [{"n": 100}, {"m": 0}, {"n": 100, "m": 100}])
@pytest.mark.parametrize("order", ["natural", "shuffled"])
def test_without_blur_tasks_are_those_of_a_class_incremental_stream(percent, order):
    data = dataset([7, 13, 9, 4, 16, 5])
    blurry = Blurry(data, tasks=3, class_order=order, seed=2, **percent)
    plain = ClassIncremental(data, tasks=3, class_order=order, seed=2)
    assert blurry.tasks == plain.tasks
    assert [sorted(task) for task in contents(blurry)] == [sorted(task) for task in contents(plain)]


@pytest.mark.parametrize("seed", range(4))
def test_a_task_whose_classes_are_all_elsewhere_is_refused(seed):
    with pytest.raises(InputError, match="no samples"):
        Blurry(dataset([4, 4, 4]), tasks=3, n=67, m=100, seed=seed)


def test_visitors_of_many_classes_are_spread_evenly_too():
    """Five samples for nine tasks must not always go to the first tasks."""
    stream = Blurry(dataset([50] * 20), tasks=10, n=0, m=10)
    visitors = [len(task) - 90 for task in contents(stream)]
    assert sum(visitors) == 100
    assert min(visitors) >= 4


def test_a_single_task_has_no_blur():
    stream = Blurry(dataset([5, 5]), tasks=1, n=0, m=50)
    assert [sorted(task) for task in contents(stream)] == [list(range(10))]


def test_old_classes_come_back_and_later_ones_come_early():
    stream = Blurry(dataset([100] * 6), tasks=3, n=0, m=20)
    there = table(stream)
    assert all(min(there[label]) == 10 for label in range(6))


def test_visitors_are_shuffled_among_the_others():
    stream = Blurry(dataset([200] * 4), tasks=2, n=0, m=50, batch=10)
    for step in range(len(stream)):
        assert len(set(stream.batch(step)[1].tolist())) > 1


def test_the_seed_decides_without_the_global_generator():
    data, before = dataset([20] * 6), torch.get_rng_state()
    first, again = (contents(Blurry(data, tasks=3, seed=4)) for _ in range(2))
    assert first == again
    assert first != contents(Blurry(data, tasks=3, seed=5))
    drawn = {tuple(Blurry(data, tasks=3, seed=seed).derived["disjoint"]) for seed in range(8)}
    assert len(drawn) > 1
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["n", "m"])
@pytest.mark.parametrize("value", [-1, 100.5, float("nan"), float("inf"), "50", None, True])
def test_an_invalid_percentage_is_refused(name, value):
    with pytest.raises(InputError, match=f"{name} "):
        Blurry(dataset([4, 4]), tasks=2, **{name: value})


# ---- with and without boundaries


class Spy(ER):
    """An ER that records the steps at which it is given a boundary."""

    def new_task(self):
        self.told_at = [*getattr(self, "told_at", []), self.steps]
        super().new_task()


STREAMS = {
    "class-incremental": (ClassIncremental, {}),
    "long-tail": (LongTail, {"rho": 2}),
    "blurry": (Blurry, {"n": 50, "m": 20}),
}


def learned(name, *, boundaries):
    data = onepass.load("synthetic", classes=6, train_per_class=40, test_per_class=2, shape=(8,))
    kind, options = STREAMS[name]
    stream = kind(data, tasks=3, batch=10, boundaries=boundaries, **options)
    learner = Spy(memory=10, gap=3, device="cpu")
    return learner, stream, list(evaluate(learner, stream))


@pytest.mark.parametrize("name", STREAMS)
def test_with_boundaries_the_learner_is_told_at_the_start_of_each_task(name):
    learner, stream, points = learned(name, boundaries=True)
    starts = [step for step in range(len(stream)) if stream.starts_task(step)]
    assert learner.told_at == starts
    assert len(starts) == len(points) == 3
    assert (learner.class_index.told, learner.task) == (True, 2)


@pytest.mark.parametrize("name", STREAMS)
def test_without_boundaries_the_learner_is_never_told(name):
    learner, _, points = learned(name, boundaries=False)
    assert not hasattr(learner, "told_at")
    assert not learner.class_index.told
    assert [point.task for point in points] == [0, 1, 2]


@pytest.mark.parametrize("name", ["class-incremental", "long-tail"])
def test_without_boundaries_the_learner_infers_the_tasks_from_unseen_classes(name):
    learner, _, _ = learned(name, boundaries=False)
    assert learner.task == 2
    assert sorted(learner.classes) == list(range(6))


def test_without_boundaries_a_blurry_stream_shows_its_classes_too_early_to_infer_any():
    """Visitors bring every class into the first task, so no class is unseen later."""
    data = onepass.load("synthetic", classes=6, train_per_class=40, test_per_class=2, shape=(8,))
    stream = Blurry(data, tasks=3, n=0, m=50, boundaries=False)
    learner = ER(memory=10, gap=3, device="cpu")
    for point in evaluate(learner, stream):
        assert sorted(learner.classes) == list(range(6))
        assert sum(point.total) == 12
    assert learner.task == 0


def test_the_stream_is_the_same_with_and_without_boundaries():
    data = dataset([20] * 6)
    for kind, options in STREAMS.values():
        told, not_told = (kind(data, tasks=3, boundaries=b, **options) for b in (True, False))
        assert contents(told) == contents(not_told)
        assert (told.spec["boundaries"], not_told.spec["boundaries"]) == (True, False)


@pytest.mark.parametrize("kind", [ClassIncremental, LongTail, Blurry])
@pytest.mark.parametrize("value", ["false", 1])
def test_boundaries_are_true_or_false(kind, value):
    with pytest.raises(InputError, match="boundaries"):
        kind(dataset([4, 4]), tasks=2, boundaries=value)
