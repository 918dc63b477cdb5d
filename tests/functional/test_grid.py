"""Tests of the grid, with Python's fractions and integers as a second implementation."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.functional import grid

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
QUICK = settings(max_examples=150, deadline=None)


def exact_whole_numbers(sample: list[float]) -> list[int]:
    """Returns a sample as whole numbers, in exact arithmetic."""
    values = [Fraction(value) for value in sample]
    top = max(abs(value) for value in values)
    if top <= 2**15 and all(value.denominator == 1 for value in values):
        return [int(value) for value in values]
    shift = 15
    while abs(top) * Fraction(2) ** shift >= 2**15:
        shift -= 1
    while abs(top) * Fraction(2) ** (shift + 1) < 2**15:
        shift += 1
    return [round(value * Fraction(2) ** shift) for value in values]  # half to even


def exact_standardise(sample: list[float]) -> list[float]:
    """Returns a sample on the grid. Python's floats follow IEEE 754."""
    k = exact_whole_numbers(sample)
    d, total = len(k), sum(k)
    spread = d * sum(value * value for value in k) - total**2
    deviation = math.sqrt(float(spread)) or 1.0
    steps = [(d * value - total) / deviation * 64 for value in k]
    return [float(round(min(max(value, -512.0), 512.0))) for value in steps]


@QUICK
@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_standardise_equals_exact_arithmetic(sample):
    assert grid.standardise(torch.tensor([sample])).tolist() == [exact_standardise(sample)]


@QUICK
@given(st.lists(st.integers(-70_000, 70_000), min_size=1, max_size=40), st.integers(-30, 3))
def test_standardise_equals_exact_arithmetic_near_whole_numbers(sample, exponent):
    values = [value * 2.0**exponent for value in sample]
    assert grid.standardise(torch.tensor([values])).tolist() == [exact_standardise(values)]


@pytest.mark.parametrize(
    "sample",
    [
        [1e-30, 2e-30, 4e-30],
        [3e38, -3e38, 1.0],
        [1e-45, 2.8e-45, 7e-45],  # subnormals
        [1e-45, 3e38, 0.0],
        [0.0, -0.0, 0.0],
        [2.0**15, 1.0, 0.5],
        [65537.0, 3.0, 2.0],
    ],
)
def test_extremes_equal_exact_arithmetic(sample):
    exact = torch.tensor([sample]).tolist()[0]
    assert grid.standardise(torch.tensor([sample])).tolist() == [exact_standardise(exact)]


def test_hand_example():
    # mean 2, variance 2/3: (3 - 2) / sqrt(2/3) = 1.2247, times 64 = 78.38
    assert grid.standardise(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[-78, 0, 78]]


def test_standardised_samples_have_mean_0_and_variance_1_to_a_step():
    x = torch.rand(20, 500, generator=torch.Generator().manual_seed(0)) * 7 - 2
    z = grid.standardise(x) / grid.STEPS
    assert z.mean(dim=1).abs().max() < 1 / grid.STEPS
    assert (z.var(dim=1, correction=0) - 1).abs().max() < 1 / grid.STEPS


def test_float64_and_float32_of_equal_values_agree_and_stay_as_they_were():
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    wide = x.double()
    assert torch.equal(grid.standardise(x), grid.standardise(wide))
    assert torch.equal(wide, x.double())
    assert grid.scale(x, 2.0)[0].equal(grid.scale(wide, 2.0)[0])
    assert torch.equal(wide, x.double())


def test_uint8_equals_float_of_the_same_values():
    x = torch.randint(256, (30, 48), generator=torch.Generator().manual_seed(0))
    assert torch.equal(grid.standardise(x.to(torch.uint8)), grid.standardise(x.float()))


@QUICK
@given(st.lists(FLOATS, min_size=2, max_size=20), st.integers(-60, 60))
def test_a_power_of_two_changes_nothing(sample, exponent):
    x = torch.tensor([sample], dtype=torch.float64)
    # a sample of whole numbers up to 2^15 itself is not moved, so 2^15 could lose a bit when moved
    if x.abs().max() != 2**15:
        assert torch.equal(grid.standardise(x), grid.standardise(x * 2.0**exponent))


@QUICK
@given(st.lists(st.integers(-9000, 9000), min_size=2, max_size=20), st.integers(-9000, 9000))
def test_a_whole_shift_of_whole_numbers_changes_nothing(sample, shift):
    x = torch.tensor([sample], dtype=torch.float32)
    assert torch.equal(grid.standardise(x), grid.standardise(x + shift))


@given(value=FLOATS, d=st.integers(1, 9))
def test_a_constant_sample_becomes_zeros(value, d):
    assert torch.equal(grid.standardise(torch.full((1, d), value)), torch.zeros(1, d))


def test_a_negative_factor_changes_signs():
    x = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(grid.standardise(-x), -grid.standardise(x))


def test_values_are_clipped_at_8():
    x = torch.zeros(2, 200)
    x[0, 3], x[1, 5] = 1, -1  # 14 deviations from the mean
    z = grid.standardise(x)
    assert z[0, 3] == 512
    assert z[1, 5] == -512


def test_samples_do_not_depend_on_their_neighbours_or_on_pieces(monkeypatch):
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([grid.standardise(row[None]) for row in x])
    monkeypatch.setattr(grid, "CHUNK", 130)
    assert torch.equal(alone, grid.standardise(x))


def test_the_longest_sample_stays_below_2_to_the_63():
    x = torch.full((1, grid.LONGEST), 2.0**15)
    x[0, ::2] = -(2.0**15)  # the largest variance that is possible
    assert grid.standardise(x).unique().tolist() == [-64, 64]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_a_bit(threads):
    before = torch.get_num_threads()
    x = torch.randn(400, 1000, generator=torch.Generator().manual_seed(0)) ** 3
    torch.set_num_threads(threads)
    try:
        z = grid.standardise(x)
    finally:
        torch.set_num_threads(before)
    assert z[::57].tolist() == [exact_standardise(row.tolist()) for row in x[::57]]


@given(exponent=st.integers(-1100, 1100))
def test_powers_of_two_are_exact(exponent):
    expected = 2.0 ** min(max(exponent, -1022), 1023)
    assert grid.power_of_two(torch.tensor(exponent)).item() == expected


# ---- short vectors


@QUICK
@given(st.lists(FLOATS, min_size=1, max_size=9), st.integers(-99, 99))
def test_scale_equals_exact_arithmetic(sample, exponent):
    values = [Fraction(value) * Fraction(2) ** exponent * 64 for value in sample]
    steps = [round(value) for value in values]
    expected = [float(min(max(step, -4096), 4096)) for step in steps]
    z, clipped = grid.scale(torch.tensor([sample]), 2.0**exponent)
    assert z.tolist() == [expected]
    assert clipped == sum(abs(step) > 4096 for step in steps)


def test_scale_rounds_half_to_even_and_clips_at_64():
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, 4096.4, 4096.6, -5000]]) / 64
    z, clipped = grid.scale(x, 1.0)
    assert z.tolist() == [[0, 2, 2, 0, 4096, 4096, -4096]]
    assert clipped == 2


def test_rounding_is_half_to_even():
    # shift 2^15 / 2^16: 0.5 and 1.5 steps of 2^-15 are ties
    tie = 2.0**-16
    assert grid.to_whole_numbers(torch.tensor([[0.75, tie, 3 * tie]])).tolist() == [[24576, 0, 2]]
