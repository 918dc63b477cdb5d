"""Tests the queues of old and of new classes, and the mixed batches taken from them."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stores import PROPERTY, filled_with, generator, is_even, p_even, reservoir, samples

from onepass.base.parts import Samples
from onepass.memory import MixedReservoir
from onepass.memory.mixed import (
    NEW,
    OLD,
    MixPlan,
    OldAndNewQueues,
    plan_for_group,
    plan_old_then_new,
)

GROUPS = ({0, 2}, {1, 3})  # old classes, new ones
IS_NEW = torch.tensor([False, True, False, True])
CPU = torch.device("cpu")
streams = st.lists(st.integers(0, 3), min_size=1, max_size=8)
memories = st.lists(st.integers(0, 3), max_size=12)
limits = st.tuples(st.integers(1, 8), st.integers(1, 8))


def negative(labels):
    """Returns a stream batch with samples -1, -2, …, which differ from all slots."""
    return samples(labels, [-1.0 - place for place in range(len(labels))])


def queues_of(stream, kept, drawn, seed=0):
    return OldAndNewQueues(
        filled_with(kept, capacity=12, seed=seed), negative(stream), IS_NEW, drawn
    )


def taken(queues, group):
    """Returns the values in a group's queue."""
    got = queues.take(plan_for_group(group, 0, int(queues.length[group]), CPU))
    assert bool((got.weight == 1).all())
    return [int(value) for value in got.x]


# ---- queues


@PROPERTY
@given(streams, memories, limits, st.integers(0, 10**6))
def test_a_queue_holds_its_stream_samples_in_order_and_then_memory_samples(
    stream, kept, drawn, seed
):
    queues = queues_of(stream, kept, drawn, seed)
    for place, group in enumerate(GROUPS):
        from_stream = [-1 - rank for rank, label in enumerate(stream) if label in group]
        eligible = {slot for slot, label in enumerate(kept) if label in group}
        values = taken(queues, place)
        from_memory = values[len(from_stream) :]
        assert int(queues.stream_counts[place]) == len(from_stream)
        assert values[: len(from_stream)] == from_stream
        assert len(from_memory) == len(set(from_memory)) == min(drawn[place], len(eligible))
        assert set(from_memory) <= eligible


@PROPERTY
@given(streams, memories, limits, st.integers(0, 10**6))
def test_the_old_queue_equals_that_of_a_mask_of_the_old_classes(stream, kept, drawn, seed):
    queues = queues_of(stream, kept, drawn, seed)
    masks = (~IS_NEW, IS_NEW)
    slots, genuine = filled_with(kept, capacity=12, seed=seed).draw_slots(max(drawn), masks)
    for group in (OLD, NEW):
        from_memory = taken(queues, group)[int(queues.stream_counts[group]) :]
        named = slots[group][genuine[group]].tolist()
        assert from_memory == named[: drawn[group]]


@PROPERTY
@given(
    streams,
    memories,
    limits,
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 60), st.booleans()), min_size=1, max_size=30
    ),
)
def test_each_rank_takes_the_sample_that_a_loop_finds(stream, kept, drawn, wanted):
    queues = queues_of(stream, kept, drawn)
    of_group = [taken(queues, group) for group in (OLD, NEW)]
    everything = [*of_group[OLD], *of_group[NEW]]
    group, rank, counts = (torch.tensor(part) for part in zip(*wanted, strict=True))
    got = queues.take(MixPlan(group, rank, counts))
    label_of = {-1 - place: label for place, label in enumerate(stream)} | dict(enumerate(kept))
    cycles = [(of_group[group] or everything, rank) for group, rank, _ in wanted]
    expected = [cycle[rank % len(cycle)] for cycle, rank in cycles]
    genuine = [float(counts and rank < len(of_group[group])) for group, rank, counts in wanted]
    assert got.x.tolist() == expected
    assert got.y.tolist() == [label_of[value] for value in expected]
    assert got.weight.tolist() == genuine
    assert got.weight.dtype == torch.float32


@PROPERTY
@given(streams, memories, limits, st.integers(0, 1), st.integers(1, 80))
def test_missing_samples_repeat_genuine_ones_evenly_at_weight_0(stream, kept, drawn, group, size):
    """BatchNorm normalises the padding too, so it must look like the samples that count."""
    queues = queues_of(stream, kept, drawn)
    members = taken(queues, group)
    got = queues.take(plan_for_group(group, 0, size, CPU))
    assert got.x.shape == got.y.shape == got.weight.shape == (size,)
    assert got.weight.tolist() == [float(place < len(members)) for place in range(size)]
    everyone = taken(queues, OLD) + taken(queues, NEW)
    assert is_even(got.x.tolist(), members or everyone)


@pytest.mark.parametrize("group", [OLD, NEW])
def test_an_empty_queue_repeats_the_samples_of_both_queues(group):
    others = [0, 2] if group == NEW else [1, 3]
    queues = queues_of([others[0], others[1], others[0]], [others[1], others[0]], drawn=(4, 4))
    got = queues.take(plan_for_group(group, 0, 10, CPU))
    assert got.weight.tolist() == [0] * 10
    assert Counter(got.x.tolist()) == dict.fromkeys([-1, -2, -3, 0, 1], 2)


def test_padding_of_a_mix_repeats_every_sample_in_turn():
    queues = queues_of([1, 1, 1, 1], [], drawn=(8, 8))
    new = queues.take(plan_for_group(NEW, 0, 12, CPU))
    assert new.x.tolist() == [-1, -2, -3, -4] * 3
    assert new.weight.tolist() == [1] * 4 + [0] * 8
    mixed = queues.take(
        plan_old_then_new(torch.tensor(6), torch.tensor(10), 16)
    )  # the old queue is empty
    assert mixed.weight.tolist() == [0] * 6 + [1] * 4 + [0] * 6
    assert is_even(mixed.x.tolist()[:6], [-1, -2, -3, -4])
    assert is_even(mixed.x.tolist()[6:], [-1, -2, -3, -4])


@PROPERTY
@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 16), streams, memories, limits)
def test_a_mix_is_the_beginning_of_each_queue(n_old, n_new, size, stream, kept, drawn):
    queues = queues_of(stream, kept, drawn)
    got = queues.take(plan_old_then_new(torch.tensor(n_old), torch.tensor(n_new), size))
    expected = (taken(queues, OLD)[:n_old], taken(queues, NEW)[:n_new])
    room = max(size - n_old, 0)
    assert got.x.shape == got.y.shape == got.weight.shape == (size,)
    assert got.x[got.weight > 0].tolist() == expected[0][:size] + expected[1][:room]
    assert set(got.weight.tolist()) <= {0.0, 1.0}


# ---- plans


@PROPERTY
@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 14))
def test_a_plan_has_the_first_ranks_of_both_groups(n_old, n_new, size):
    got = plan_old_then_new(torch.tensor(n_old), torch.tensor(n_new), size)
    counted = [(OLD, rank) for rank in range(n_old)] + [(NEW, rank) for rank in range(n_new)]
    places = list(zip(got.group.tolist(), got.rank.tolist(), strict=True))
    assert places[: len(counted)] == counted[:size]
    assert got.counts.tolist() == [place < n_old + n_new for place in range(size)]
    assert all(rank >= 0 for _, rank in places)


@pytest.mark.parametrize("first", [0, 3, torch.tensor(3)], ids=str)
def test_a_plan_of_one_group_starts_at_its_first_rank(first):
    got = plan_for_group(NEW, first, 4, CPU)
    assert got.group.tolist() == [NEW] * 4
    assert got.rank.tolist() == [int(first) + place for place in range(4)]
    assert got.counts.tolist() == [True] * 4


def test_plans_can_be_taken_together_or_one_after_the_other():
    queues = queues_of([0, 1, 1, 3], [1, 2, 0, 3, 1], drawn=(3, 4))
    first = plan_for_group(NEW, queues.stream_counts[NEW], 3, CPU)
    second = plan_old_then_new(torch.tensor(2), torch.tensor(3), 6)
    together = queues.take(first.then(second)).cut(3, 6)
    for got, plan in zip(together, (first, second), strict=True):
        for part, expected in zip(got, queues.take(plan), strict=True):
            assert torch.equal(part, expected)


def test_a_group_with_the_smaller_limit_still_draws_uniformly():
    labels, counts = [0, 1, 0, 1, 1, 0, 1, 1], np.zeros(8)
    store = filled_with(labels, seed=9)
    for _ in range(5000):
        queues = OldAndNewQueues(store, negative([0]), IS_NEW, drawn=(5, 1))
        assert queues.length.tolist() == [1 + 3, 1]
        counts[int(queues.take(plan_for_group(NEW, 0, 1, CPU)).x)] += 1
    wanted = np.flatnonzero(labels)
    assert counts.sum() == counts[wanted].sum()
    assert p_even(counts[wanted]) > 1e-3


def test_a_batch_holds_raw_images_as_they_are():
    images = torch.randint(0, 256, (9, 3, 4, 4), generator=generator(), dtype=torch.uint8)
    store = reservoir(6, shape=(3, 4, 4), dtype=torch.uint8)
    labels = torch.tensor([0, 1, 2, 0, 0, 1, 2, 2, 1])
    store.add(images[:6], labels[:6])
    stream = Samples(images[6:], labels[6:], torch.ones(3))
    got = OldAndNewQueues(store, stream, IS_NEW, drawn=(6, 6)).take(plan_for_group(NEW, 0, 5, CPU))
    assert got.x.dtype == torch.uint8
    assert torch.equal(got.x[0], images[8])
    found = [next(k for k in range(9) if torch.equal(image, images[k])) for image in got.x]
    assert sorted(found[1:3]) == [1, 5]
    assert got.y.tolist() == [1] * 5
    assert got.weight.tolist() == [1, 1, 1, 0, 0]


# ---- the mixed reservoir


def by_classes(size, new, seen):
    """Returns the shares by numbers of classes, with the new one rounded down."""
    n_new = size * new // seen
    return size - n_new, n_new


def mixing(kept, size=6, seed=0, fill=None, shares=by_classes, seen=4):
    """Returns a memory of 12 slots with these labels. Two of the four classes are new."""
    store = MixedReservoir(
        12, (), torch.float32, generator(seed), size=size, shares=shares, fill=fill
    )
    store.add(torch.arange(len(kept)).float(), torch.tensor(kept, dtype=torch.int64))
    store.classes_are(torch.arange(4) < seen, IS_NEW)
    return store


@PROPERTY
@given(
    streams,
    memories,
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(0, 6),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_a_mixed_batch_has_its_shares_of_both_queues_and_more_of_the_new_one(
    stream, kept, size, fill, current, from_stream, seed
):
    store, given_stream = mixing(kept, size, seed, fill), negative(stream)
    state = store.rng.get_state()
    mix, some = store.mixed_and_current(given_stream, current, from_stream=from_stream)
    store.rng.set_state(state)
    most = size if fill is None else fill
    queues = OldAndNewQueues(store, given_stream, IS_NEW, (size, most))
    old, new = taken(queues, OLD), taken(queues, NEW)
    assert len(new) <= most + int(queues.stream_counts[NEW])
    n_new = size // 2
    assert mix.x[mix.weight > 0].tolist() == old[: size - n_new] + new[:n_new]
    first = 0 if from_stream else int(queues.stream_counts[NEW])
    assert some.x[some.weight > 0].tolist() == new[first : first + current]
    assert (len(some.y), len(mix.y)) == (current, size)


@PROPERTY
@given(streams, memories, st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**6))
def test_the_mix_does_not_depend_on_further_samples(stream, kept, size, current, seed):
    alone = mixing(kept, size, seed).mixed(negative(stream))
    beside, _ = mixing(kept, size, seed).mixed_and_current(negative(stream), current)
    for found, expected in zip(alone, beside, strict=True):
        assert torch.equal(found, expected)


def test_shares_are_computed_when_classes_arrive_and_not_in_a_step():
    calls = []

    def shares(size, new, seen):
        calls.append((size, int(new), int(seen)))
        return by_classes(size, new, seen)

    store = mixing([0, 1, 2, 3], shares=shares)
    for _ in range(3):
        store.mixed(negative([0, 1]))
    assert calls == [(6, 2, 4)]
    store.classes_are(torch.ones(4, dtype=torch.bool), torch.tensor([False] * 3 + [True]))
    assert calls == [(6, 2, 4), (6, 1, 4)]


def test_before_any_class_the_shares_assume_one_class():
    calls = []

    def shares(size, new, seen):
        calls.append((int(new), int(seen)))
        return by_classes(size, new, seen)

    store = MixedReservoir(3, (), torch.float32, generator(), size=4, shares=shares)
    none = torch.zeros(4, dtype=torch.bool)
    store.classes_are(none, none)
    assert calls == [(0, 1)]


def test_other_classes_change_the_next_mix_where_a_captured_step_reads_it():
    store, stream = mixing([0, 1, 2, 3] * 3), negative([2, 3])
    addresses = [part.data_ptr() for part in store._plan]
    new = torch.tensor([False, False, False, True])
    counts = []
    for classes in (IS_NEW, new):
        store.classes_are(torch.ones(4, dtype=torch.bool), classes)
        mix = store.mixed(stream)
        assert bool(mix.weight.all())
        counts.append(int(classes[mix.y].sum()))
    assert counts == [3, 1]
    assert [part.data_ptr() for part in store._plan] == addresses


def test_a_limit_on_new_memory_samples_leaves_padding_at_weight_0():
    store = mixing(
        [1] * 12, size=8, fill=2, shares=lambda size, new, seen: (0 * new, size + 0 * new)
    )
    mix = store.mixed(negative([3]))
    assert mix.weight.tolist() == [1] * 3 + [0] * 5
    assert mix.x[0] == -1
    assert len({*mix.x[1:3].tolist()}) == 2
