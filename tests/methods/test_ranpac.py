"""Tests RanPAC's random features against Python's integers, and its settings."""

import math

import pytest
import torch
from closed_forms import learned, made_samples

from onepass import InputError, RanPAC, Ridge
from onepass.functional import grid
from onepass.methods.ranpac import RandomReLU


def exact_features(z, projection, shift):
    """Returns the features of whole numbers z by Python's integers and fractions of powers of 2."""
    columns = projection.long().T.tolist()
    return [
        [
            min(max(round(sum(a * b for a, b in zip(row, column, strict=True)) / 2**shift), 0), 512)
            for column in columns
        ]
        for row in z.long().tolist()
    ]


@pytest.mark.parametrize("kind", ["vectors", "short"])
def test_features_equal_pythons(kind):
    x, _ = made_samples(kind, n=10)
    z = grid.standardise(x) if kind == "vectors" else grid.scale(x, 1.0)[0]
    features = RandomReLU(z.shape[1], 20, seed=3)
    shift = -int(math.log2(features.factor))
    if kind == "short":  # one more value of 1, in grid steps
        z = torch.cat([z, torch.full((10, 1), 64.0)], dim=1)
        assert features.projection.shape == (4, 20)
    assert features(z[:, : x.shape[1]]).tolist() == exact_features(z, features.projection, shift)


def test_samples_past_the_bound_of_float32_have_exact_features():
    source = torch.Generator().manual_seed(0)
    z = grid.standardise(torch.randn(3, 20_000, generator=source))
    features = RandomReLU(20_000, 4, seed=0)
    assert float(z.norm(dim=1).min()) * features.norm > 2**24
    shift = -int(math.log2(features.factor))
    assert features(z).tolist() == exact_features(z, features.projection, shift)


def test_features_of_standardised_samples_are_nearly_half_normal():
    source = torch.Generator().manual_seed(0)
    z = grid.standardise(torch.randn(500, 128, generator=source))
    h = RandomReLU(128, 400, seed=0)(z) / 64
    deviation = math.sqrt(128 * 341) * RandomReLU(128, 1, seed=0).factor  # near 1, by a power of 2
    assert float((h == 0).float().mean()) == pytest.approx(0.5, abs=0.02)
    assert float(h.mean()) == pytest.approx(deviation / math.sqrt(2 * math.pi), rel=0.03)
    assert float(h.square().mean()) == pytest.approx(deviation**2 / 2, rel=0.05)


def test_the_width_is_four_times_the_inputs_up_to_10_000():
    learner = RanPAC()
    assert [learner.features_for(inputs) for inputs in (3, 64, 2500, 2501)] == [12, 256, 10_000,
                                                                               10_000]  # fmt: skip
    assert RanPAC(width=7).features_for(64) == 7


def test_it_solves_what_is_not_linear_and_ridge_does_not():
    """Four corners of a square, two classes on its diagonals."""
    source = torch.Generator().manual_seed(0)
    corners = torch.randint(0, 2, (400, 2), generator=source)
    y = corners[:, 0] ^ corners[:, 1]
    x = 2.0 * corners - 1 + 0.2 * torch.randn(400, 2, generator=source)
    right = {kind: (learned(kind(), x, y).predict(x) == y).float().mean()
             for kind in (RanPAC, Ridge)}  # fmt: skip
    assert right[RanPAC] > 0.95
    assert right[Ridge] < 0.75


def test_another_seed_gives_other_features_and_nearly_the_same_accuracy():
    x, y = made_samples(n=200)
    hashes, right = set(), []
    for seed in range(3):
        learner = learned(RanPAC(width=100, seed=seed), x, y)
        hashes.add(learner.sums_sha256())
        right.append(float((learner.predict(x) == y).float().mean()))
    assert len(hashes) == 3
    assert min(right) > 0.9


@pytest.mark.parametrize("settings", [{"width": 0}, {"width": -3}, {"strength": 0.0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(InputError, match=f"{next(iter(settings))} must be"):
        RanPAC(**settings)
