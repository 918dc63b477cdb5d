"""Tests of the whole numbers that random projections are made of."""

import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onepass.functional import random_features as random


def test_entries_are_cut_from_shake_256():
    stream = hashlib.shake_256(b"onepass projection 7").digest(1000)
    expected = [2 * (byte % 32) - 31 for byte in stream]
    assert random.draw_entries(1000, 7, "projection").tolist() == expected


def test_longer_draws_begin_with_shorter_ones():
    short, long = (random.draw_entries(count, 3, "projection") for count in (10, 100))
    assert torch.equal(short, long[:10])


def test_entries_are_uniform_and_have_the_stated_variance():
    drawn = random.draw_entries(200_000, 0, "projection")
    values, counts = drawn.unique(return_counts=True)
    assert values.tolist() == list(range(-31, 32, 2))
    chi_squared = float(((counts - 6250.0) ** 2 / 6250).sum())
    assert chi_squared < 62  # 31 degrees of freedom: one draw in a thousand is larger
    assert sum(v * v for v in range(-31, 32, 2)) / 32 == random.ENTRY_VARIANCE


def test_seeds_and_purposes_give_different_entries():
    drawn = [
        random.draw_entries(500, seed, purpose)
        for seed in (0, 1)
        for purpose in ("projection", "frequencies")
    ]
    for index, one in enumerate(drawn):
        for other in drawn[:index]:
            assert abs(float(torch.corrcoef(torch.stack([one, other]).float())[0, 1])) < 0.2


def test_frequencies_are_nearly_normal():
    drawn = random.draw_frequencies(300, 400, 0).flatten() / math.sqrt(random.FREQUENCY_VARIANCE)
    assert abs(float(drawn.mean())) < 0.01
    assert abs(float(drawn.var()) - 1) < 0.02
    # the fourth moment of a sum of twelve uniform numbers is 3 - 1.2 / 12
    assert abs(float(drawn.pow(4).mean()) - 2.9) < 0.1


def test_phases_are_uniform():
    drawn = random.draw_phases(40_000, 4096, 0)
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < 4096
    counts = torch.bincount(drawn // 256, minlength=16).double()
    assert float(((counts - 2500) ** 2 / 2500).sum()) < 38  # 15 degrees of freedom


@given(st.integers(1, 2**16))
def test_the_shift_is_nearest_by_ratio(inputs):
    shift, deviation = random.projection_shift(inputs), math.sqrt(inputs * 341)
    assert math.sqrt(0.5) <= 2**shift / deviation <= math.sqrt(2)


@pytest.mark.parametrize("width", [1, 50])
def test_the_column_norm_is_the_largest(width):
    drawn = random.draw_projection(64, width, 0)
    assert drawn.shape == (64, width)
    assert drawn.dtype is torch.float32
    norms = [math.hypot(*column) for column in drawn.T.tolist()]
    assert random.column_norm(drawn) == pytest.approx(max(norms), rel=1e-12)
