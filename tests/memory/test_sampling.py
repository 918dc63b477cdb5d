"""Tests sampling without replacement, and the n-th true entry of a mask."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stores import PROPERTY, generator, is_even, p_even

from onepass.memory import draw_distinct, nth_true

# ---- draw_distinct


@PROPERTY
@given(st.integers(0, 40), st.integers(0, 400), st.integers(0, 10**6))
def test_a_draw_has_distinct_members_below_the_population(count, population, seed):
    drawn, genuine = draw_distinct(count, torch.tensor(population), generator(seed))
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
def test_several_populations_have_one_draw_each(count, shape, seed, data):
    size = int(np.prod(shape))
    populations = data.draw(st.lists(st.integers(0, 60), min_size=size, max_size=size))
    many = torch.tensor(populations, dtype=torch.int64).view(shape)
    drawn, genuine = draw_distinct(count, many, generator(seed))
    assert drawn.shape == genuine.shape == (*shape, count)
    rows = zip(drawn.view(size, count), genuine.view(size, count), populations, strict=True)
    for row, real, population in rows:
        kept = row[real].tolist()
        assert len(kept) == len(set(kept)) == min(count, population)
        assert real.tolist() == [place < population for place in range(count)]
        assert all(0 <= value < max(population, 1) for value in row.tolist())


@PROPERTY
@given(st.integers(1, 30), st.integers(0, 10**6), st.data())
def test_a_draw_larger_than_the_population_repeats_it(count, seed, data):
    population = data.draw(st.integers(1, count))
    drawn, genuine = draw_distinct(count, torch.tensor(population), generator(seed))
    assert sorted(drawn[:population].tolist()) == list(range(population))
    assert genuine.tolist() == [place < population for place in range(count)]
    assert drawn[population:].tolist() == [place % population for place in range(population, count)]
    assert is_even(drawn.tolist(), range(population))


def test_an_empty_population_gives_zeros_that_are_not_genuine():
    drawn, genuine = draw_distinct(5, torch.tensor(0), generator())
    assert drawn.tolist() == [0] * 5
    assert not genuine.any()


@pytest.mark.parametrize("population", [6, 13], ids=["listed", "above four times the count"])
def test_every_element_every_pair_and_every_order_is_equally_likely(population):
    count, draws, source = 3, 12_000, generator(7)
    first, single = np.zeros(population), np.zeros(population)
    pairs = dict.fromkeys(itertools.combinations(range(population), 2), 0)
    for size in (1, 39) * (draws // 40):
        for drawn in draw_distinct(count, torch.full((size,), population), source)[0].tolist():
            first[drawn[0]] += 1
            single[drawn] += 1
            for pair in itertools.combinations(sorted(drawn), 2):
                pairs[pair] += 1
    assert single.sum() == count * draws
    # Counts of draws without replacement vary less than multinomial ones: these tests are
    # conservative.
    assert p_even(first) > 1e-3
    assert p_even(single) > 1e-3
    assert p_even(list(pairs.values())) > 1e-3


@pytest.mark.parametrize("population", [4, 9], ids=["listed", "above four times the count"])
def test_draws_of_one_call_are_independent(population):
    source, joint = generator(8), np.zeros((population, population))
    for _ in range(40):
        both = draw_distinct(2, torch.full((200, 2), population), source)[0]
        for first, second in both[..., 0].tolist():
            joint[first, second] += 1
    assert p_even(joint.flatten()) > 1e-3


def test_a_seed_repeats_its_draws_and_another_seed_does_not():
    def draw(seed):
        return draw_distinct(64, torch.tensor(1000), generator(seed))[0].tolist()

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
    assert found[len(expected) :] == [len(mask)] * (len(mask) - len(expected))
    assert nth_true(counts.int(), torch.arange(len(mask))).tolist() == found
