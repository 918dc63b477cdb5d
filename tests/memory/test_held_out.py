"""Tests a memory that holds out samples from training: which samples go where, and which are
dropped."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stores import PROPERTY, generator, held, numbers, p_even, reservoir

from onepass.base.errors import CheckpointError
from onepass.memory import FilteredReservoir, HeldOutSet

ROWS = 8


def made(kind, capacity, seed=0):
    return kind(capacity, (), torch.float32, generator(seed))


# ---- the filtered reservoir


@PROPERTY
@given(st.integers(0, 9), st.lists(st.integers(1, 6), max_size=5))
def test_accepting_all_samples_it_equals_the_reservoir_bit_for_bit(capacity, batches):
    plain, sifted, first = reservoir(capacity), made(FilteredReservoir, capacity), 0
    for size in batches:
        x, y = numbers(first, first + size)
        plain.add(x, y)
        sifted.add(x, y, accept=torch.ones(size, dtype=torch.bool))
        first += size
    assert held(plain) == held(sifted)
    assert int(plain.offered) == int(sifted.offered)


@PROPERTY
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), max_size=5))
def test_while_there_is_room_accepted_samples_are_stored_in_order(parts):
    store, first, expected = made(FilteredReservoir, 30), 0, []
    for part in parts:
        x, y = numbers(first, first + len(part))
        store.add(x, y, accept=torch.tensor(part))
        expected += [first + place for place, takes in enumerate(part) if takes]
        first += len(part)
    assert held(store) == store.x[: len(expected)].tolist() == expected


def test_accepted_samples_are_kept_equally_often_and_others_never():
    counts, part = Counter(), torch.tensor([True, False, True, True, False])
    for seed in range(600):
        store = made(FilteredReservoir, 3, seed)
        for first in (0, 5, 10):
            store.add(*numbers(first, first + 5), accept=part)
        counts.update(held(store))
    assert sorted(counts) == [0, 2, 3, 5, 7, 8, 10, 12, 13]
    assert p_even(list(counts.values())) > 1e-3


# ---- the held-out set


class Naive:
    """A held-out set in plain lists."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.kept, self.share = capacity, [], 0

    def classes_are(self, seen: int) -> None:
        self.share, kept = self.capacity // max(seen, 1), []
        for sample in self.kept:
            if [label for _, label in kept].count(sample[1]) < self.share:
                kept.append(sample)
        self.kept = kept

    def add(self, x: list[float], y: list[int], candidate: list[bool]) -> list[bool]:
        wanted = []
        for sample in zip(x, y, candidate, strict=True):
            room = [label for _, label in self.kept].count(sample[1]) < self.share
            wanted.append(sample[2] and room)
            if wanted[-1]:
                self.kept.append(sample[:2])
        return wanted


batches = st.lists(st.tuples(st.integers(0, ROWS - 1), st.booleans()), min_size=1, max_size=7)


@PROPERTY
@given(st.integers(0, 12), st.lists(batches, max_size=8))
def test_shares_equal_those_of_plain_lists(capacity, stream):
    store, naive, seen, count = made(HeldOutSet, capacity), Naive(capacity), set(), 0
    for batch in stream:
        labels, candidate = ([sample[i] for sample in batch] for i in (0, 1))
        if not seen.issuperset(labels):
            seen |= set(labels)
            mask = torch.zeros(ROWS, dtype=torch.bool)
            mask[list(seen)] = True
            store.classes_are(mask, mask)
            naive.classes_are(len(seen))
        x = [float(count + place) for place in range(len(batch))]
        count += len(batch)
        y = torch.tensor(labels)
        wanted = store.fitting(y, torch.tensor(candidate))
        assert wanted.tolist() == naive.add(x, labels, candidate)
        store.add(torch.tensor(x), y, accept=wanted)
        size = int(store.size)
        pairs = zip(store.x[:size].tolist(), store.y[:size].tolist(), strict=True)
        assert list(pairs) == naive.kept
        assert size <= capacity


def test_its_state_has_a_constant_size_and_rows_without_a_class_are_refused():
    store = made(HeldOutSet, 6)
    empty = {name: value.shape for name, value in store.state_dict().items()}
    two = torch.arange(ROWS) < 2
    store.classes_are(two, two)
    y = torch.tensor([0, 1, 1])
    store.add(torch.zeros(3), y, accept=store.fitting(y, y < 9))
    state = store.state_dict()
    assert {name: value.shape for name, value in state.items()} == empty
    made(HeldOutSet, 6).expect(state, 2, "held")
    with pytest.raises(CheckpointError, match="row 1"):
        made(HeldOutSet, 6).expect(state, 1, "held")
