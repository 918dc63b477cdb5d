"""Tests the reservoir against algorithm R, and draws from it."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stores import (
    PROPERTY,
    filled_with,
    generator,
    held,
    is_even,
    numbers,
    p_even,
    reservoir,
    samples,
)

from onepass.base.errors import CheckpointError
from onepass.base.parts import Samples
from onepass.memory import Reservoir


def algorithm_r(capacity, batches, seed):
    """Runs Vitter's algorithm R, one sample at a time, on the reservoir's uniform numbers."""
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
    assert int(store.offered) == first
    assert int(store.size) == min(first, capacity)


def test_every_sample_is_kept_with_probability_capacity_over_offered():
    """This holds for batches that fill it, for the batch that crosses its capacity, and later
    ones."""
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
    assert p_even(count) > 1e-3


def test_if_two_samples_of_a_batch_draw_one_slot_the_later_stays():
    """With one slot and a batch of n, sample k replaces the stored one with probability 1 / k."""
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
    assert int(store.offered) == 7
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


def test_raw_images_are_stored_unchanged():
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
def test_a_masked_draw_returns_each_wanted_sample_at_most_once_and_no_other(labels, count, seed):
    store = filled_with(labels, capacity=30, seed=seed)
    among = torch.tensor([False, True, False, True, False])
    eligible = [slot for slot, label in enumerate(labels) if label in (1, 3)]
    drawn = store.draw(count, fallback=samples([0, 2], [-1, -2]), among=among)
    kept = drawn.x[drawn.weight > 0].tolist()
    assert len(kept) == len(set(kept)) == min(count, len(eligible))
    assert set(kept) <= set(eligible)
    # Missing samples repeat drawn ones, or stream samples if there are none.
    assert is_even(drawn.x.tolist(), kept or [-1, -2])
    assert drawn.x.shape == (count,)
    label_of = {-1: 0, -2: 2, **dict(enumerate(labels))}
    assert drawn.y.tolist() == [label_of[value] for value in drawn.x.tolist()]


@PROPERTY
@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 20), st.integers(0, 10**6))
def test_each_group_of_classes_gets_its_own_slots(labels, count, seed):
    groups = ({1, 3}, {0}, {2, 4}, set(), {0, 1, 2, 3, 4})
    masks = [torch.tensor([row in group for row in range(5)]) for group in groups]
    slots, genuine = filled_with(labels, capacity=30, seed=seed).draw_slots(count, masks)
    assert slots.shape == genuine.shape == (5, count)
    for row, real, group in zip(slots, genuine, groups, strict=True):
        eligible = {slot for slot, label in enumerate(labels) if label in group}
        kept = row[real].tolist()
        assert len(kept) == len(set(kept)) == min(count, len(eligible))
        assert set(kept) <= eligible
        if eligible:
            assert is_even(row.tolist(), kept)


def test_draws_for_two_groups_are_uniform_and_independent():
    labels = [0, 1, 0, 1, 1, 0, 1, 1]
    store, masks = filled_with(labels, seed=6), list(torch.eye(2, dtype=torch.bool))
    joint = dict.fromkeys(itertools.product([0, 2, 5], [1, 3, 4, 6, 7]), 0)
    for _ in range(6000):
        first, second = store.draw_slots(1, masks)[0].flatten().tolist()
        joint[first, second] += 1
    assert len(joint) == 15
    assert p_even(list(joint.values())) > 1e-3


def test_a_masked_draw_is_uniform_among_the_wanted():
    labels = [0, 1, 0, 1, 1, 0, 1, 1, 0, 1]
    store, among = filled_with(labels, seed=5), torch.tensor([False, True])
    counts = np.zeros(10)
    for _ in range(6000):
        counts[store.draw_slots(2, [among])[0][0]] += 1
    wanted = np.flatnonzero(labels)
    assert counts.sum() == counts[wanted].sum() == 12_000
    assert p_even(counts[wanted]) > 1e-3


def test_slots_that_were_never_filled_are_never_drawn():
    store = filled_with([0, 0, 0], capacity=50)
    for groups in (None, [torch.tensor([True])], [torch.tensor([True]), torch.tensor([True])]):
        slots, genuine = store.draw_slots(10, groups)
        assert sorted(slots[genuine].tolist()) == sorted([0, 1, 2] * len(groups or [None]))
        assert set(slots.flatten().tolist()) == {0, 1, 2}


def test_a_state_resumes_bit_for_bit():
    def use(store, first):
        store.add(*numbers(first, first + 7))
        return store.draw(6, fallback=samples([0])).y.tolist()

    uninterrupted, source = reservoir(10, seed=2), generator()
    for first in (0, 7, 14):
        use(uninterrupted, first)
    copy = Reservoir(10, (), torch.float32, source)
    copy.load_state_dict(uninterrupted.state_dict())
    source.set_state(uninterrupted.rng.get_state())
    for first in (21, 28, 35):
        assert use(copy, first) == use(uninterrupted, first)
        assert held(copy) == held(uninterrupted)
        assert torch.equal(copy.x[:10], uninterrupted.x[:10])


def test_a_state_does_not_change_later():
    store = reservoir(3)
    store.add(*numbers(0, 3))
    state = store.state_dict()
    store.add(*numbers(3, 60))
    assert state["x"].tolist() == state["y"].tolist() == [0, 1, 2]
    assert int(state["offered"]) == 3
    assert held(store) != [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offered": torch.tensor(2)}, "kept.size is 3, not between 0 and 2"),
        ({"offered": torch.tensor(-1)}, "kept.offered is -1"),
        ({"size": torch.tensor(5)}, "kept.size is 5, not between 0 and 4"),
        ({"y": torch.tensor([0, 1])}, "kept.y"),
        ({"y": torch.tensor([0, 1, 9])}, "kept.y holds row 9, but there are only 3 classes"),
    ],
)
def test_an_impossible_state_is_refused(change, message):
    store = filled_with([0, 1, 2], capacity=4)
    reservoir(4).expect(store.state_dict(), 3, "kept")
    with pytest.raises(CheckpointError, match=message):
        reservoir(4).expect({**store.state_dict(), **change}, 3, "kept")
