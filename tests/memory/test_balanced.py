"""Tests the balanced memory against a plain-list version of its rule, on the same random
numbers."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onepass.base.parts import Samples
from onepass.memory import BalancedMemory

PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)
ROWS = 6


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def balanced(capacity, seed=0, rows=ROWS, fields=None):
    return BalancedMemory(capacity, (), torch.float32, generator(seed), fields, rows=rows)


def feed(store, labels, batch=10, first=0):
    """Adds samples that equal their position in the stream."""
    for begin in range(0, len(labels), batch):
        y = torch.tensor(labels[begin : begin + batch])
        store.add(torch.arange(len(y)).float() + first + begin, y)
    return store


def held(store):
    size = int(store.size)
    numbers = store.x[:size].long().tolist()
    return list(zip(numbers, store.y[:size].tolist(), strict=True))


def counts(store):
    return Counter(label for _, label in held(store))


def by_plain_lists(capacity, labels, uniform):
    """Returns the (number, label) pairs by slot, from the rule applied to one sample at a time."""
    memory, known = [], []
    for number, (label, lot) in enumerate(zip(labels, uniform, strict=True)):
        if not capacity:
            continue
        quota = capacity // len(known) if known else capacity
        holds = sum(other == label for _, other in memory)
        unknown = label not in known
        if unknown:
            known.append(label)
        if not unknown and holds >= quota:
            continue
        if len(memory) < capacity:
            memory.append((number, label))
            continue
        sizes = Counter(other for _, other in memory)
        largest = min(row for row, size in sizes.items() if size == max(sizes.values()))
        members = [slot for slot, (_, other) in enumerate(memory) if other == largest]
        memory[members[int(lot * len(members))]] = (number, label)
    return memory


streams = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=60)


@PROPERTY
@given(streams, st.integers(0, 14), st.integers(1, 11), st.integers(0, 10**6))
def test_a_batch_is_stored_as_if_its_samples_came_one_by_one(labels, capacity, batch, seed):
    store, twin, uniform = balanced(capacity, seed), generator(seed), []
    for begin in range(0, len(labels), batch):
        count = len(labels[begin : begin + batch])
        uniform += torch.rand(count, generator=twin, dtype=torch.float64).tolist()
    feed(store, labels, batch)
    assert held(store) == by_plain_lists(capacity, labels, uniform)


@PROPERTY
@given(streams, st.integers(1, 14), st.integers(0, 10**6))
def test_the_size_of_batches_does_not_matter(labels, capacity, seed):
    one_by_one = feed(balanced(capacity, seed), labels, batch=1)
    assert held(feed(balanced(capacity, seed), labels, batch=60)) == held(one_by_one)


@PROPERTY
@given(streams, st.integers(0, 14), st.integers(0, 10**6))
def test_it_never_exceeds_its_capacity_and_counts_its_samples_correctly(labels, capacity, seed):
    store = balanced(capacity, seed)
    for first in range(0, len(labels), 7):
        feed(store, labels[first : first + 7], first=first)
        assert int(store.size) == len(held(store)) <= capacity
        known = set(labels[: first + 7]) if capacity else set()
        expected = [counts(store)[row] if row in known else -1 for row in range(ROWS)]
        assert store.held.tolist() == expected
        assert all(labels[number] == label for number, label in held(store))


@pytest.mark.parametrize("capacity", [6, 13, 50, 61])
@pytest.mark.parametrize("together", [1, 2, 3])
def test_classes_that_arrive_in_turn_fill_it_and_differ_by_at_most_one(capacity, together):
    store, order = balanced(capacity), random.Random(1)
    for first in range(0, ROWS, together):
        labels = [first + label for label in range(together)] * 80
        order.shuffle(labels)
        feed(store, labels)
    sizes = counts(store).values()
    assert len(sizes) == ROWS and max(sizes) - min(sizes) <= 1
    assert sum(sizes) == capacity


def test_classes_that_arrive_together_have_equal_shares_rounded_down():
    store = feed(balanced(20), [0, 1, 2] * 30)
    assert counts(store) == {0: 6, 1: 6, 2: 6}


def test_the_quota_counts_the_classes_known_before_the_sample():
    store = feed(balanced(4), [0, 0, 0, 0, 1])
    assert counts(store) == {0: 3, 1: 1}
    assert counts(feed(store, [1, 1, 1])) == {0: 2, 1: 2}


def test_a_tie_of_the_largest_classes_removes_from_the_first_row():
    store = feed(balanced(6), [3, 3, 3, 1, 1, 1])
    assert counts(feed(store, [5])) == {1: 2, 3: 3, 5: 1}
    assert counts(feed(store, [4])) == {1: 2, 3: 2, 4: 1, 5: 1}


def test_a_class_with_few_samples_stays_small():
    store = feed(balanced(30), [0] * 50 + [1] * 3 + [2] * 50)
    assert counts(store)[1] == 3
    assert counts(store)[0] > counts(store)[2] == 10


def test_with_fewer_slots_than_classes_only_a_new_class_is_stored():
    store = feed(balanced(2), [0, 1, 2, 3])
    assert counts(store) == {2: 1, 3: 1}
    assert held(feed(store, [0, 1, 2, 3] * 5, first=4)) == [(2, 2), (3, 3)]


def test_without_capacity_nothing_is_stored():
    store = feed(balanced(0), [0, 1, 2] * 5)
    assert held(store) == [] and store.bytes == 0


def test_every_sample_of_the_largest_class_is_replaced_equally_often():
    thrown = Counter()
    for seed in range(800):
        store = feed(balanced(5, seed), [0] * 5 + [1])
        thrown += Counter(set(range(5)) - {number for number, _ in held(store)})
    assert sum(thrown.values()) == 800
    assert stats.chisquare([thrown[number] for number in range(5)]).pvalue > 1e-3


def test_fields_stay_with_their_samples():
    store = balanced(5, fields={"origin": torch.zeros(2)})
    for first in range(0, 40, 8):
        number = torch.arange(first, first + 8).float()
        store.add(number, torch.arange(8) % 3 + first // 16, origin=number.view(-1, 1) * 10 + 1)
    size = int(store.size)
    assert size == 5
    expected = store.x[:size].view(-1, 1).expand(-1, 2) * 10 + 1
    assert torch.equal(store.fields["origin"][:size], expected)


def test_no_slot_is_written_twice_at_once(monkeypatch):
    written, write = [], BalancedMemory.write

    def note(self, slots, x, y, **fields):
        written.append(slots.tolist())
        write(self, slots, x, y, **fields)

    monkeypatch.setattr(BalancedMemory, "write", note)
    for seed in range(20):
        feed(balanced(3, seed), [0] * 5 + [1] * 5 + [2] * 5, batch=15)
    for slots in written:
        places = [slot for slot in slots if slot < 3]
        assert len(set(places)) == len(places)


def test_samples_are_copies():
    store, x = balanced(5), torch.ones(3)
    store.add(x, torch.tensor([0, 1, 2]))
    x.zero_()
    assert store.x[:3].tolist() == [1, 1, 1]


def test_growing_the_head_does_not_change_existing_rows():
    grown, wide = balanced(7, rows=3), balanced(7, rows=8)
    for store in (grown, wide):
        feed(store, [0, 1, 2] * 4)
    grown.grow(8)
    for store in (grown, wide):
        feed(store, [6, 7, 0, 1] * 5, first=12)
    assert held(grown) == held(wide)
    assert torch.equal(grown.held, wide.held)


def test_a_loaded_memory_continues_exactly():
    uninterrupted, stopped, opened = balanced(7), balanced(7), balanced(7, seed=1)
    feed(uninterrupted, [0, 1, 0, 2] * 6)
    feed(stopped, [0, 1, 0, 2] * 6)
    opened.load_state_dict(stopped.state_dict())
    opened.rng.set_state(stopped.rng.get_state())
    for store in (uninterrupted, opened):
        feed(store, [3, 1, 4, 2] * 6, first=24)
    assert held(opened) == held(uninterrupted)


def test_draws_work_as_from_any_memory():
    store = feed(balanced(9), [0, 1, 2] * 10)
    fallback = Samples(torch.zeros(1), torch.zeros(1).long(), torch.ones(1))
    only = torch.tensor([False, True, False, False, False, False])
    drawn = store.draw(5, fallback, among=only)
    assert drawn.y.tolist() == [1] * 5 and drawn.weight.tolist() == [1, 1, 1, 0, 0]
    assert sorted(drawn.x[:3].long().tolist()) == [
        n for n, label in sorted(held(store)) if label == 1
    ]
