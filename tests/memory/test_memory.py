"""Draws without replacement, the reservoir, and batches mixed from stream and memory."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onepass.memory import Places, Pools, Reservoir, distinct, line, nth_true, shares
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


def even(values, members):
    """Whether the values are these members, each as often as any other or once more."""
    counts = Counter(values)
    often = [counts.pop(member, 0) for member in members]
    return not counts and max(often) - min(often) <= 1


def evenly(counts):
    """The p-value of a chi-square test that all outcomes are equally likely."""
    return stats.chisquare(counts).pvalue


# ---- distinct


@PROPERTY
@given(st.integers(0, 40), st.integers(0, 400), st.integers(0, 10**6))
def test_a_draw_has_distinct_members_below_the_population(count, population, seed):
    drawn, genuine = distinct(count, torch.tensor(population), generator(seed))
    assert drawn.shape == genuine.shape == (count,)
    assert drawn.dtype == torch.int64
    kept = drawn[genuine].tolist()
    assert len(kept) == len(set(kept)) == min(count, population)
    assert all(0 <= value < max(population, 1) for value in drawn.tolist())


@PROPERTY
@given(
    st.integers(0, 12),
    st.sampled_from([(1,), (5,), (2, 3), (0,)]),
    st.integers(0, 10**6),
    st.data(),
)
def test_several_populations_have_a_draw_each(count, shape, seed, data):
    size = int(np.prod(shape))
    populations = data.draw(st.lists(st.integers(0, 60), min_size=size, max_size=size))
    many = torch.tensor(populations, dtype=torch.int64).view(shape)
    drawn, genuine = distinct(count, many, generator(seed))
    assert drawn.shape == genuine.shape == (*shape, count)
    rows = zip(drawn.view(size, count), genuine.view(size, count), populations, strict=True)
    for row, real, population in rows:
        kept = row[real].tolist()
        assert len(kept) == len(set(kept)) == min(count, population)
        assert real.tolist() == [place < population for place in range(count)]
        assert all(0 <= value < max(population, 1) for value in row.tolist())


@PROPERTY
@given(st.integers(1, 30), st.integers(0, 10**6), st.data())
def test_a_population_smaller_than_the_draw_comes_whole_and_is_then_repeated(count, seed, data):
    population = data.draw(st.integers(1, count))
    drawn, genuine = distinct(count, torch.tensor(population), generator(seed))
    assert sorted(drawn[:population].tolist()) == list(range(population))
    assert genuine.tolist() == [place < population for place in range(count)]
    assert drawn[population:].tolist() == [place % population for place in range(population, count)]
    assert even(drawn.tolist(), range(population))


def test_an_empty_population_gives_zeros_none_of_them_genuine():
    drawn, genuine = distinct(5, torch.tensor(0), generator())
    assert drawn.tolist() == [0] * 5
    assert not genuine.any()


@pytest.mark.parametrize("population", [6, 13], ids=["listed", "above four times the count"])
def test_every_element_every_pair_and_every_order_is_equally_likely(population):
    count, draws, source = 3, 12_000, generator(7)
    first, single = np.zeros(population), np.zeros(population)
    pairs = dict.fromkeys(itertools.combinations(range(population), 2), 0)
    for size in (1, 39) * (draws // 40):
        for drawn in distinct(count, torch.full((size,), population), source)[0].tolist():
            first[drawn[0]] += 1
            single[drawn] += 1
            for pair in itertools.combinations(sorted(drawn), 2):
                pairs[pair] += 1
    assert single.sum() == count * draws
    # Draws without replacement vary less than a multinomial, so these tests are conservative.
    assert evenly(first) > 1e-3
    assert evenly(single) > 1e-3
    assert evenly(list(pairs.values())) > 1e-3


@pytest.mark.parametrize("population", [4, 9], ids=["listed", "above four times the count"])
def test_draws_of_one_call_are_independent(population):
    source, joint = generator(8), np.zeros((population, population))
    for _ in range(40):
        both = distinct(2, torch.full((200, 2), population), source)[0]
        for one, other in both[..., 0].tolist():
            joint[one, other] += 1
    assert evenly(joint.flatten()) > 1e-3


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
    counts = torch.tensor(mask).cumsum(0)
    found = nth_true(counts, torch.arange(len(mask))).tolist()
    assert found[: len(expected)] == expected
    assert found[len(expected) :] == [len(mask) - 1] * (len(mask) - len(expected))
    assert nth_true(counts.int(), torch.arange(len(mask))).tolist() == found


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
    assert even(drawn.x.tolist(), kept or [-1, -2])
    assert drawn.x.shape == (count,)
    label_of = {-1: 0, -2: 2, **dict(enumerate(labels))}
    assert drawn.y.tolist() == [label_of[value] for value in drawn.x.tolist()]


@PROPERTY
@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 20), st.integers(0, 10**6))
def test_each_group_of_classes_has_slots_of_its_own(labels, count, seed):
    groups = ({1, 3}, {0}, {2, 4}, set(), {0, 1, 2, 3, 4})
    masks = [torch.tensor([row in group for row in range(5)]) for group in groups]
    slots, genuine = filled(labels, capacity=30, seed=seed).slots(count, masks)
    assert slots.shape == genuine.shape == (5, count)
    for row, real, group in zip(slots, genuine, groups, strict=True):
        eligible = {slot for slot, label in enumerate(labels) if label in group}
        kept = row[real].tolist()
        assert len(kept) == len(set(kept)) == min(count, len(eligible))
        assert set(kept) <= eligible
        if eligible:
            assert even(row.tolist(), kept)


def test_draws_for_two_groups_are_uniform_and_independent():
    labels = [0, 1, 0, 1, 1, 0, 1, 1]
    store, masks = filled(labels, seed=6), list(torch.eye(2, dtype=torch.bool))
    joint = dict.fromkeys(itertools.product([0, 2, 5], [1, 3, 4, 6, 7]), 0)
    for _ in range(6000):
        zero, one = store.slots(1, masks)[0].flatten().tolist()
        joint[zero, one] += 1
    assert len(joint) == 15
    assert evenly(list(joint.values())) > 1e-3


def test_a_masked_draw_is_uniform_among_the_wanted():
    labels = [0, 1, 0, 1, 1, 0, 1, 1, 0, 1]
    store, among = filled(labels, seed=5), torch.tensor([False, True])
    counts = np.zeros(10)
    for _ in range(6000):
        counts[store.slots(2, [among])[0][0]] += 1
    wanted = np.flatnonzero(labels)
    assert counts.sum() == counts[wanted].sum() == 12_000
    assert evenly(counts[wanted]) > 1e-3


def test_slots_that_were_never_filled_are_never_drawn():
    store = filled([0, 0, 0], capacity=50)
    for groups in (None, [torch.tensor([True])], [torch.tensor([True]), torch.tensor([True])]):
        slots, genuine = store.slots(10, groups)
        assert sorted(slots[genuine].tolist()) == sorted([0, 1, 2] * len(groups or [None]))
        assert set(slots.flatten().tolist()) == {0, 1, 2}


def test_a_state_goes_on_bit_for_bit():
    def use(store, first):
        store.add(*numbers(first, first + 7))
        return store.draw(6, fallback=samples([0])).y.tolist()

    whole, source = reservoir(10, seed=2), generator()
    for first in (0, 7, 14):
        use(whole, first)
    copy = Reservoir(10, (), torch.float32, source)
    copy.load_state_dict(whole.state_dict())
    source.set_state(whole.rng.get_state())
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


# ---- lines of samples, and batches taken from them


GROUPS = ({0, 2}, {1}, {3})
MASKS = tuple(torch.tensor([row in group for row in range(4)]) for group in GROUPS)
CPU = torch.device("cpu")
streams = st.lists(st.integers(0, 3), min_size=1, max_size=8)
memories = st.lists(st.integers(0, 3), max_size=12)
limits = st.lists(st.integers(1, 8), min_size=3, max_size=3)


def negative(labels):
    """A stream batch whose samples are -1, -2, …, which no slot is."""
    return samples(labels, [-1.0 - place for place in range(len(labels))])


def pools(stream, kept, drawn, seed=0):
    return Pools(filled(kept, capacity=12, seed=seed), negative(stream), MASKS, drawn)


def taken(lines, group):
    """A group's line, as values."""
    got = lines.take(line(group, 0, int(lines.length[group]), CPU))
    assert bool((got.weight == 1).all())
    return [int(value) for value in got.x]


@PROPERTY
@given(streams, memories, limits, st.integers(0, 10**6))
def test_a_line_has_its_groups_samples_of_the_stream_in_order_and_then_those_of_the_memory(
    stream, kept, drawn, seed
):
    lines = pools(stream, kept, drawn, seed)
    for place, group in enumerate(GROUPS):
        from_stream = [-1 - rank for rank, label in enumerate(stream) if label in group]
        eligible = {slot for slot, label in enumerate(kept) if label in group}
        values = taken(lines, place)
        from_memory = values[len(from_stream) :]
        assert int(lines.in_stream[place]) == len(from_stream)
        assert values[: len(from_stream)] == from_stream
        assert len(from_memory) == len(set(from_memory)) == min(drawn[place], len(eligible))
        assert set(from_memory) <= eligible


@PROPERTY
@given(streams, memories, limits, st.integers(0, 10**6))
def test_a_line_of_all_other_classes_is_that_of_their_mask(stream, kept, drawn, seed):
    first, _, third = MASKS
    store = filled(kept, capacity=12, seed=seed)
    rest = Pools(store, negative(stream), (first, None, third), drawn)
    named = pools(stream, kept, drawn, seed)
    for group in range(3):
        assert taken(rest, group) == taken(named, group)


@PROPERTY
@given(
    streams,
    memories,
    limits,
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 60), st.booleans()), min_size=1, max_size=30
    ),
)
def test_a_place_has_what_a_loop_finds_at_its_rank(stream, kept, drawn, wanted):
    lines = pools(stream, kept, drawn)
    of_group = [taken(lines, group) for group in range(3)]
    everything = [*of_group[0], *of_group[1], *of_group[2]]
    group, rank, counts = (torch.tensor(part) for part in zip(*wanted, strict=True))
    got = lines.take(Places(group, rank, counts))
    label_of = {-1 - place: label for place, label in enumerate(stream)} | dict(enumerate(kept))
    cycles = [(of_group[group] or everything, rank) for group, rank, _ in wanted]
    expected = [cycle[rank % len(cycle)] for cycle, rank in cycles]
    genuine = [float(counts and rank < len(of_group[group])) for group, rank, counts in wanted]
    assert got.x.tolist() == expected
    assert got.y.tolist() == [label_of[value] for value in expected]
    assert got.weight.tolist() == genuine
    assert got.weight.dtype == torch.float32


@PROPERTY
@given(streams, memories, limits, st.integers(0, 2), st.integers(1, 80))
def test_what_is_missing_repeats_the_genuine_members_evenly_at_weight_0(
    stream, kept, drawn, group, size
):
    """BatchNorm sees the padding, so it must look like the samples that count."""
    lines = pools(stream, kept, drawn)
    members = taken(lines, group)
    got = lines.take(line(group, 0, size, CPU))
    assert got.x.shape == got.y.shape == got.weight.shape == (size,)
    assert got.weight.tolist() == [float(place < len(members)) for place in range(size)]
    everyone = taken(lines, 0) + taken(lines, 1) + taken(lines, 2)
    assert even(got.x.tolist(), members or everyone)


def test_an_empty_line_falls_back_on_the_samples_of_all_lines():
    lines = pools([0, 1, 2], [2, 1, 1], drawn=(4, 4, 4))
    got = lines.take(line(2, 0, 12, CPU))
    assert got.weight.tolist() == [0] * 12
    assert Counter(got.x.tolist()) == dict.fromkeys([-1, -2, -3, 0, 1, 2], 2)


def test_padding_of_a_mix_repeats_every_sample_in_turn_and_not_one_of_them():
    lines = pools([1, 1, 1, 1], [], drawn=(8, 8, 8))
    new = lines.take(line(1, 0, 12, CPU))
    assert new.x.tolist() == [-1, -2, -3, -4] * 3
    assert new.weight.tolist() == [1] * 4 + [0] * 8
    mixed = lines.take(shares(torch.tensor(6), torch.tensor(10), 16))  # of group 0 there is none
    assert mixed.weight.tolist() == [0] * 6 + [1] * 4 + [0] * 6
    assert even(mixed.x.tolist()[:6], [-1, -2, -3, -4])
    assert even(mixed.x.tolist()[6:], [-1, -2, -3, -4])


@PROPERTY
@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 16), streams, memories, limits)
def test_a_mix_is_the_beginning_of_each_line(n_first, n_second, size, stream, kept, drawn):
    lines = pools(stream, kept, drawn)
    got = lines.take(shares(torch.tensor(n_first), torch.tensor(n_second), size))
    expected = (taken(lines, 0)[:n_first], taken(lines, 1)[:n_second])
    room = max(size - n_first, 0)
    assert got.x.shape == got.y.shape == got.weight.shape == (size,)
    assert got.x[got.weight > 0].tolist() == expected[0][:size] + expected[1][:room]
    assert set(got.weight.tolist()) <= {0.0, 1.0}


@PROPERTY
@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 14))
def test_shares_are_the_first_ranks_of_both_groups(first, second, size):
    got = shares(torch.tensor(first), torch.tensor(second), size)
    counted = [(0, rank) for rank in range(first)] + [(1, rank) for rank in range(second)]
    places = list(zip(got.group.tolist(), got.rank.tolist(), strict=True))
    assert places[: len(counted)] == counted[:size]
    assert got.counts.tolist() == [place < first + second for place in range(size)]
    assert all(rank >= 0 for _, rank in places)


@pytest.mark.parametrize("first", [0, 3, torch.tensor(3)], ids=str)
def test_a_line_goes_on_from_its_first_rank(first):
    got = line(2, first, 4, CPU)
    assert got.group.tolist() == [2] * 4
    assert got.rank.tolist() == [int(first) + place for place in range(4)]
    assert got.counts.tolist() == [True] * 4


def test_places_can_be_asked_for_together_or_one_after_the_other():
    lines = pools([0, 1, 1, 3], [1, 2, 0, 3, 1], drawn=(3, 4, 2))
    one, other = line(1, lines.in_stream[1], 3, CPU), shares(torch.tensor(2), torch.tensor(3), 6)
    together = lines.take(one.then(other)).cut(3, 6)
    for got, places in zip(together, (one, other), strict=True):
        for part, expected in zip(got, lines.take(places), strict=True):
            assert torch.equal(part, expected)


def test_a_group_with_the_smaller_limit_still_draws_uniformly():
    labels, counts = [0, 1, 0, 1, 1, 0, 1, 1], np.zeros(8)
    store, masks = filled(labels, seed=9), MASKS[:2]
    for _ in range(5000):
        lines = Pools(store, negative([0]), masks, drawn=(5, 1))
        assert lines.length.tolist() == [1 + 3, 1]
        counts[int(lines.take(line(1, 0, 1, CPU)).x)] += 1
    wanted = np.flatnonzero(labels)
    assert counts.sum() == counts[wanted].sum()
    assert evenly(counts[wanted]) > 1e-3


def test_a_batch_holds_raw_images_as_they_are():
    images = torch.randint(0, 256, (9, 3, 4, 4), generator=generator(), dtype=torch.uint8)
    store = reservoir(6, shape=(3, 4, 4), dtype=torch.uint8)
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 1])
    store.add(images[:6], labels[:6])
    stream = Samples(images[6:], labels[6:], torch.ones(3))
    got = Pools(store, stream, MASKS, drawn=(6, 6, 6)).take(line(1, 0, 5, CPU))
    assert got.x.dtype == torch.uint8
    assert torch.equal(got.x[0], images[8])
    found = [next(k for k in range(9) if torch.equal(one, images[k])) for one in got.x]
    assert sorted(found[1:3]) == [1, 5]
    assert got.y.tolist() == [1] * 5
    assert got.weight.tolist() == [1, 1, 1, 0, 0]


# ---- samples


def test_samples_are_joined_and_cut_again():
    one, other = samples([0, 1], [5, 6]), samples([2, 3, 4])._replace(weight=torch.zeros(3))
    both = one.then(other)
    assert both.x.tolist() == [5, 6, 2, 3, 4]
    assert both.y.tolist() == [0, 1, 2, 3, 4]
    assert both.weight.tolist() == [1, 1, 0, 0, 0]
    for got, expected in zip(both.cut(2, 3), (one, other), strict=True):
        assert isinstance(got, Samples)
        for part, same in zip(got, expected, strict=True):
            assert torch.equal(part, same)


@pytest.mark.parametrize("sizes", [(5,), (1, 4), (2, 0, 3), (1, 1, 1, 1, 1)])
def test_pieces_are_consecutive_and_of_the_sizes_asked_for(sizes):
    pieces = samples([0, 1, 2, 3, 4]).cut(*sizes)
    assert tuple(len(piece.y) for piece in pieces) == sizes
    assert [label for piece in pieces for label in piece.y.tolist()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sizes", [(4,), (2, 4)])
def test_pieces_that_do_not_add_up_to_the_samples_are_an_error(sizes):
    with pytest.raises(RuntimeError):
        samples([0, 1, 2, 3, 4]).cut(*sizes)
