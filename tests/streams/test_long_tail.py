"""Long-tail streams: the counts of the published protocol, with nothing else changed."""

from collections import Counter

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onepass import ClassIncremental, Dataset, InputError, LongTail
from onepass.streams.long_tail import long_tail_counts

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
CIFAR100, CIFAR10, TINY = [500] * 100, [5000] * 10, [500] * 200


def dataset(counts, seed=0):
    """Returns images of one pixel in random order of classes."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
    x = torch.zeros(len(y), 1, 1, 1, dtype=torch.uint8)
    return Dataset("fake", x, y, x, y, tuple(map(str, range(len(counts)))))


def indices(stream):
    return [index for step in range(len(stream)) for index in stream.indices(step).tolist()]


def classes(stream):
    """Returns the number of samples of each class in the stream."""
    counts = Counter(stream.dataset.train_y[indices(stream)].tolist())
    return [counts[label] for label in range(stream.dataset.classes)]


def tasks(stream):
    sizes = Counter()
    for step in range(len(stream)):
        sizes[stream.task_of(step)] += len(stream.indices(step))
    return [sizes[task] for task in range(len(stream.tasks))]


# ---- the published numbers


@pytest.mark.parametrize(
    ("counts", "rho", "total"),
    [
        (CIFAR100, 100, 10_847),
        (CIFAR100, 50, 12_608),
        (CIFAR100, 10, 19_573),
        (CIFAR10, 100, 12_406),
        (CIFAR10, 50, 13_996),
        (CIFAR10, 10, 20_431),
        (TINY, 100, 21_549),
        (TINY, 50, 25_082),
        (TINY, 10, 39_072),
    ],
    ids=lambda value: f"{len(value)} classes" if isinstance(value, list) else str(value),
)
@pytest.mark.parametrize("order", ["natural", "shuffled"])
def test_the_totals_are_the_published_ones(counts, rho, total, order):
    stream = LongTail(dataset(counts), tasks=10, rho=rho, class_order=order)
    assert len(indices(stream)) == total
    assert classes(stream) == stream.derived["counts"]


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        (CIFAR100, [4088, 2565, 1609, 1008, 631, 394, 247, 152, 95, 58]),
        (CIFAR10, [7997, 2873, 1032, 371, 133]),
    ],
    ids=["CIFAR100", "CIFAR10"],
)
def test_ordered_tasks_shrink_as_published(counts, sizes):
    assert tasks(LongTail(dataset(counts), tasks=len(sizes), rho=100)) == sizes


def test_cifar100_goes_from_500_down_to_5():
    kept = classes(LongTail(dataset(CIFAR100), tasks=10, rho=100))
    assert (kept[0], kept[1], kept[50], kept[98], kept[99]) == (500, 477, 48, 5, 5)


@PROPERTY
@given(st.integers(1, 200), st.integers(1, 50), st.integers(2, 12))
@example(49, 2, 10)  # 98 / 49 is less than 2 in floating point
def test_the_first_class_is_rho_times_the_last(rho, last, number):
    kept = long_tail_counts([rho * last] * number, rho)
    assert (kept[0], kept[-1]) == (rho * last, last)


# ---- the samples that are kept


@PROPERTY
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.floats(1, 300),
    st.sampled_from(["natural", "shuffled"]),
    st.integers(0, 1000),
    st.data(),
)
def test_every_sample_comes_at_most_once_and_no_class_dies_out(counts, rho, order, seed, data):
    number = data.draw(st.integers(1, len(counts)))
    stream = LongTail(dataset(counts), tasks=number, batch=7, rho=rho, class_order=order, seed=seed)
    assert max(Counter(indices(stream)).values()) == 1
    kept = classes(stream)
    assert all(1 <= some <= whole for some, whole in zip(kept, counts, strict=True))
    assert kept[0] == counts[0]
    for step in range(len(stream)):
        assert set(stream.batch(step)[1].tolist()) <= set(stream.tasks[stream.task_of(step)])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_shuffled_order_keeps_the_counts_of_every_class(seed):
    data = dataset([40] * 10)
    ordered = LongTail(data, tasks=5, rho=20, seed=seed)
    mixed = LongTail(data, tasks=5, rho=20, class_order="shuffled", seed=seed)
    assert classes(mixed) == classes(ordered)
    assert sorted(indices(mixed)) == sorted(indices(ordered))
    assert mixed.tasks != ordered.tasks
    assert tasks(ordered) == sorted(tasks(ordered), reverse=True)
    assert tasks(mixed) != sorted(tasks(mixed), reverse=True)


def test_the_test_set_stays_whole():
    data = dataset([40] * 4)
    stream = LongTail(data, tasks=2, rho=10)
    assert stream.dataset is data
    assert torch.bincount(stream.dataset.test_y).tolist() == [40] * 4


@pytest.mark.parametrize("order", ["natural", "shuffled"])
def test_with_rho_1_it_is_a_class_incremental_stream(order):
    data = dataset([7, 3, 9, 4, 6, 5])
    tail = LongTail(data, tasks=3, rho=1, class_order=order, seed=2)
    plain = ClassIncremental(data, tasks=3, class_order=order, seed=2)
    assert tail.tasks == plain.tasks
    assert tasks(tail) == tasks(plain)
    assert sorted(indices(tail)) == sorted(indices(plain))


def test_the_seed_decides_which_samples_stay_without_the_global_generator():
    data, before = dataset([40] * 4), torch.get_rng_state()
    first, again, other = (LongTail(data, tasks=2, rho=10, seed=seed) for seed in (0, 0, 1))
    assert indices(first) == indices(again)
    assert set(indices(first)) != set(indices(other))
    assert torch.equal(before, torch.get_rng_state())


def test_kept_samples_are_drawn_at_random():
    data = dataset([100, 100])
    stream = LongTail(data, tasks=2, rho=10)
    last = [index for index in indices(stream) if data.train_y[index] == 1]
    assert sorted(last) != torch.nonzero(data.train_y == 1).flatten().tolist()[:10]


def test_the_record_has_the_streams_arguments():
    stream = LongTail(dataset([40, 40]), tasks=2, rho=10, class_order="shuffled", seed=4)
    said = {
        key: {**stream.spec, **stream.derived}[key]
        for key in ("stream", "rho", "counts", "class_order", "seed")
    }
    assert said == {
        "stream": "long-tail",
        "rho": 10,
        "counts": [40, 4],
        "class_order": "shuffled",
        "seed": 4,
    }


@pytest.mark.parametrize("rho", [0, 0.5, -3, "100", None, True, float("nan"), float("inf")])
def test_an_invalid_rho_is_refused(rho):
    with pytest.raises(InputError, match="rho"):
        LongTail(dataset([4, 4]), tasks=2, rho=rho)
