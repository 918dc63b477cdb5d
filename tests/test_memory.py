"""Draws without replacement, the reservoir, and batches mixed from stream and memory."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onepass.memory import Reservoir, distinct, mix, nth_true, pool
from onepass.parts import Samples

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def reservoir(capacity, seed=0, shape=(), dtype=torch.float32):
    return Reservoir(capacity, shape, dtype, generator(seed))


def numbers(first, past):
    """Samples that are their own place in the stream."""
    return torch.arange(first, past).float(), torch.arange(first, past)


def samples(labels, values=None):
    y = torch.tensor(labels)
    x = torch.tensor(labels if values is None else values, dtype=torch.float32)
    return Samples(x, y, torch.ones(len(y)))


def held(store):
    return store.y[: int(store.size)].tolist()


def filled(labels, capacity=None, seed=0):
    """A memory that holds these labels, with each sample's slot as its value."""
    store = reservoir(len(labels) if capacity is None else capacity, seed)
    store.add(torch.arange(len(labels)).float(), torch.tensor(labels, dtype=torch.int64))
    return store


def evenly(counts):
    """The p-value of a chi-square test that all outcomes are equally likely."""
    return stats.chisquare(counts).pvalue


# ---- distinct


@PROPERTY
@given(st.integers(0, 40), st.integers(0, 400), st.integers(0, 10**6))
def test_a_draw_has_distinct_members_below_the_population(count, population, seed):
    drawn, genuine = distinct(count, torch.tensor(population), generator(seed))
    assert drawn.shape == genuine.shape == (count,)
    kept = drawn[genuine].tolist()
    assert len(kept) == len(set(kept)) == min(count, population)
    assert all(0 <= value < max(population, 1) for value in drawn.tolist())


@PROPERTY
@given(st.integers(1, 30), st.integers(0, 10**6), st.data())
def test_a_population_smaller_than_the_draw_comes_whole_and_is_then_repeated(count, seed, data):
    population = data.draw(st.integers(1, count))
    drawn, genuine = distinct(count, torch.tensor(population), generator(seed))
    assert sorted(drawn[:population].tolist()) == list(range(population))
    assert genuine.tolist() == [place < population for place in range(count)]
    assert drawn.tolist() == [int(drawn[place % population]) for place in range(count)]


def test_an_empty_population_gives_zeros_none_of_them_genuine():
    drawn, genuine = distinct(5, torch.tensor(0), generator())
    assert drawn.tolist() == [0] * 5
    assert not genuine.any()


@pytest.mark.parametrize("population", [6, 13], ids=["listed", "above four times the count"])
def test_every_element_every_pair_and_every_order_is_equally_likely(population):
    count, draws, source = 3, 12_000, generator(7)
    first, single = np.zeros(population), np.zeros(population)
    pairs = dict.fromkeys(itertools.combinations(range(population), 2), 0)
    for _ in range(draws):
        drawn = distinct(count, torch.tensor(population), source)[0].tolist()
        first[drawn[0]] += 1
        single[drawn] += 1
        for pair in itertools.combinations(sorted(drawn), 2):
            pairs[pair] += 1
    assert single.sum() == count * draws
    # Draws without replacement vary less than a multinomial, so these tests are conservative.
    assert evenly(first) > 1e-3
    assert evenly(single) > 1e-3
    assert evenly(list(pairs.values())) > 1e-3


def test_a_seed_repeats_its_draws_and_another_gives_others():
    def draw(seed):
        return distinct(64, torch.tensor(1000), generator(seed))[0].tolist()

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


# ---- nth_true


@PROPERTY
@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_nth_true_finds_what_a_loop_finds(mask):
    expected = [place for place, value in enumerate(mask) if value]
    found = nth_true(torch.tensor(mask), torch.arange(len(mask))).tolist()
    assert found[: len(expected)] == expected
    assert found[len(expected) :] == [len(mask) - 1] * (len(mask) - len(expected))


# ---- the reservoir


def algorithm_r(capacity, batches, seed):
    """Vitter's algorithm R, one sample at a time, on the uniforms that the reservoir draws."""
    source, slots, k = generator(seed), [None] * capacity, 0
    for batch in batches:
        uniforms = torch.rand(len(batch), generator=source, dtype=torch.float64).tolist()
        for label, uniform in zip(batch, uniforms, strict=True):
            k += 1
            place = k - 1 if k <= capacity else int(uniform * k)
            if place < capacity:
                slots[place] = label
    return slots[: min(k, capacity)]


@PROPERTY
@given(
    st.integers(0, 12),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.integers(0, 10**6),
)
def test_the_reservoir_is_algorithm_r_slot_by_slot(capacity, sizes, seed):
    store, batches, first = reservoir(capacity, seed), [], 0
    for size in sizes:
        x, y = numbers(first, first + size)
        store.add(x, y)
        batches.append(y.tolist())
        first += size
    assert held(store) == algorithm_r(capacity, batches, seed)
    assert store.x[: int(store.size)].tolist() == held(store)
    assert int(store.seen) == first
    assert int(store.size) == min(first, capacity)


def test_every_sample_of_the_stream_is_held_with_probability_capacity_over_seen():
    """In the filling batch, in the one that straddles the capacity, and within later batches."""
    capacity, sizes, runs = 4, (3, 5, 6), 6000
    count, source = np.zeros(sum(sizes)), generator(11)
    for _ in range(runs):
        store, first = Reservoir(capacity, (), torch.float32, source), 0
        for size in sizes:
            store.add(*numbers(first, first + size))
            first += size
        assert len(set(held(store))) == capacity
        count[held(store)] += 1
    expected = capacity / sum(sizes)
    deviation = np.sqrt(expected * (1 - expected) / runs)
    assert np.abs(count / runs - expected).max() < 4 * deviation
    assert evenly(count) > 1e-3


def test_of_two_samples_of_a_batch_for_one_slot_the_later_stays():
    """With one slot and a batch of n, sample k replaces what is there with probability 1 / k."""
    for seed in range(50):
        store = reservoir(1, seed)
        store.add(*numbers(0, 40))
        uniforms = torch.rand(40, generator=generator(seed), dtype=torch.float64)
        last = max(k for k in range(40) if k == 0 or int(uniforms[k] * (k + 1)) == 0)
        assert held(store) == [last]


def test_a_memory_without_capacity_holds_nothing_and_draws_from_the_stream():
    store = reservoir(0)
    store.add(*numbers(0, 7))
    assert int(store.size) == 0
    assert int(store.seen) == 7
    drawn = store.draw(4, fallback=samples([5, 6, 7]))
    assert drawn.y.tolist() == [5, 6, 7, 5]
    assert drawn.weight.tolist() == [0] * 4


def test_the_memory_holds_copies():
    store = reservoir(4, shape=(2,))
    x, y = torch.ones(3, 2), torch.tensor([0, 1, 2])
    store.add(x, y)
    x.fill_(9)
    y.fill_(9)
    assert store.x[:3].tolist() == [[1, 1]] * 3
    assert held(store) == [0, 1, 2]
    drawn = store.draw(3, fallback=Samples(x, y, torch.ones(3)))
    drawn.x.fill_(5)
    assert store.x[:3].tolist() == [[1, 1]] * 3


def test_raw_images_stay_as_they_are():
    images = torch.randint(0, 256, (6, 3, 4, 4), generator=generator(), dtype=torch.uint8)
    store = reservoir(6, shape=(3, 4, 4), dtype=torch.uint8)
    store.add(images, torch.arange(6))
    drawn = store.draw(6, fallback=Samples(images[:1], torch.zeros(1).long(), torch.ones(1)))
    assert drawn.x.dtype == torch.uint8
    assert torch.equal(drawn.x, images[drawn.y])


def test_the_bytes_are_those_of_the_samples_and_their_labels():
    store = reservoir(100, shape=(3, 32, 32), dtype=torch.uint8)
    assert store.bytes == 100 * (3 * 32 * 32 + 8)


# ---- drawing from the reservoir


@PROPERTY
@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 20), st.integers(0, 10**6))
def test_a_masked_draw_holds_each_wanted_sample_at_most_once_and_no_other(labels, count, seed):
    store = filled(labels, capacity=30, seed=seed)
    among = torch.tensor([False, True, False, True, False])
    eligible = [slot for slot, label in enumerate(labels) if label in (1, 3)]
    drawn = store.draw(count, fallback=samples([0, 2], [-1, -2]), among=among)
    kept = drawn.x[drawn.weight > 0].tolist()
    assert len(kept) == len(set(kept)) == min(count, len(eligible))
    assert set(kept) <= set(eligible)
    # What is missing repeats drawn samples, or the stream's if there are none.
    assert set(drawn.x.tolist()) <= (set(kept) or {-1, -2})
    assert drawn.x.shape == (count,)


def test_a_masked_draw_is_uniform_among_the_wanted():
    labels = [0, 1, 0, 1, 1, 0, 1, 1, 0, 1]
    store, among = filled(labels, seed=5), torch.tensor([False, True])
    counts = np.zeros(10)
    for _ in range(6000):
        counts[store.slots(2, among)[0]] += 1
    wanted = np.flatnonzero(labels)
    assert counts.sum() == counts[wanted].sum() == 12_000
    assert evenly(counts[wanted]) > 1e-3


def test_slots_that_were_never_filled_are_never_drawn():
    store = filled([0, 0, 0], capacity=50)
    for among in (None, torch.tensor([True])):
        slots, genuine = store.slots(10, among)
        assert set(slots[genuine].tolist()) == {0, 1, 2}


def test_a_state_goes_on_bit_for_bit():
    def use(store, first):
        store.add(*numbers(first, first + 7))
        return store.draw(6, fallback=samples([0])).y.tolist()

    whole, source = reservoir(10, seed=2), generator()
    for first in (0, 7, 14):
        use(whole, first)
    copy = Reservoir(10, (), torch.float32, source)
    copy.load_state_dict(whole.state_dict())
    source.set_state(whole.source.get_state())
    for first in (21, 28, 35):
        assert use(copy, first) == use(whole, first)
        assert held(copy) == held(whole)
        assert torch.equal(copy.x[:10], whole.x[:10])


def test_a_state_is_a_snapshot():
    store = reservoir(3)
    store.add(*numbers(0, 3))
    state = store.state_dict()
    store.add(*numbers(3, 60))
    assert state["x"].tolist() == state["y"].tolist() == [0, 1, 2]
    assert int(state["seen"]) == 3
    assert held(store) != [0, 1, 2]


# ---- pools and mixes


@PROPERTY
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.lists(st.integers(0, 3), max_size=12),
    st.integers(1, 10),
)
def test_a_pool_has_the_wanted_of_the_stream_in_order_and_then_those_of_the_memory(
    stream, kept, drawn
):
    among = torch.tensor([True, False, True, False])
    batch = samples(stream, [-1.0 - place for place in range(len(stream))])
    got = pool(filled(kept, capacity=12), batch, among, drawn)
    from_stream = [-1.0 - place for place, label in enumerate(stream) if label in (0, 2)]
    eligible = {slot for slot, label in enumerate(kept) if label in (0, 2)}
    values, genuine = got.x.tolist(), int(got.weight.sum())
    from_memory = values[len(from_stream) : genuine]
    assert got.x.shape == (len(stream) + drawn,)
    assert got.weight.tolist() == [1.0] * genuine + [0.0] * (len(stream) + drawn - genuine)
    assert values[: len(from_stream)] == from_stream
    assert len(from_memory) == len(set(from_memory)) == min(drawn, len(eligible))
    assert set(from_memory) <= eligible
    assert all(label in (0, 2) for label in got.y[:genuine].tolist())


def test_padding_of_the_stream_stays_out_of_a_pool():
    batch = samples([0, 0, 0], [1, 2, 3])._replace(weight=torch.tensor([1.0, 0.0, 1.0]))
    got = pool(filled([]), batch, torch.tensor([True]), drawn=2)
    assert got.x[got.weight > 0].tolist() == [1, 3]


@PROPERTY
@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 12), st.integers(0, 12), st.data())
def test_a_mix_is_the_beginning_of_each_pool(old_places, old_held, new_places, new_held, data):
    def a_pool(places, genuine, first):
        values = torch.arange(first, first + places)
        return Samples(values.float(), values, (torch.arange(places) < genuine).float())

    old = a_pool(old_places, min(old_held, old_places), 0)
    new = a_pool(new_places, min(new_held, new_places), 100)
    size = data.draw(st.integers(1, 16))
    n_old = data.draw(st.integers(0, size))
    n_new = data.draw(st.integers(0, size - n_old))
    got = mix(old, new, torch.tensor(n_old), torch.tensor(n_new), size)
    expected = list(range(min(n_old, old_held, old_places)))
    expected += [100 + rank for rank in range(min(n_new, new_held, new_places))]
    assert got.x.shape == got.y.shape == got.weight.shape == (size,)
    assert got.y[got.weight > 0].tolist() == expected
    assert got.x.tolist() == got.y.tolist()
    assert set(got.weight.tolist()) <= {0.0, 1.0}


def test_padding_repeats_every_sample_in_turn_and_not_one_of_them():
    """BatchNorm sees the padding, so it must look like the samples that count."""
    store = Reservoir(20, (1,), torch.float32, torch.Generator().manual_seed(0))
    stream = Samples(torch.arange(4.0).view(4, 1), torch.zeros(4, dtype=torch.long), torch.ones(4))
    among = torch.tensor([True, False])
    new = pool(store, stream, among, drawn=8)
    assert new.x.flatten().tolist() == [0, 1, 2, 3] * 3
    assert new.weight.tolist() == [1] * 4 + [0] * 8
    old = pool(store, stream, ~among, drawn=8)
    mixed = mix(old, new, torch.tensor(0), torch.tensor(16), size=16)
    assert mixed.weight.sum() == 4
    assert torch.bincount(mixed.x.flatten().long()).tolist() == [4] * 4
