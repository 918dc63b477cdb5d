"""Tests kernel LDA's random Fourier features, and its settings."""

import math

import pytest
import torch
from closed_forms import learned, made_samples

from onepass import SLDA, InputError, KernelLDA
from onepass.functional import grid
from onepass.methods.kernel_lda import TURN, RandomFourier


def naive_features(z, features, gamma):
    """Returns the features in plain float64, without a table."""
    scaled = features.frequencies.double() / math.sqrt(12 * 341) * math.sqrt(2 * gamma)
    angle = (z.double() / 64) @ scaled + features.phases * (2 * math.pi / TURN)
    return 512 * angle.cos()


@pytest.mark.parametrize("gamma", [1e-6, 0.03, 2.0])
@pytest.mark.parametrize("inputs", [3, 64, 6000])
def test_features_are_cosines_to_a_step_of_the_table(inputs, gamma):
    source = torch.Generator().manual_seed(0)
    z = grid.standardise(torch.randn(5, inputs, generator=source))
    features = RandomFourier(inputs, 30, seed=2, gamma=gamma)
    step = 512 * 2 * math.pi / TURN  # of an angle, times the largest slope
    assert (features(z) - naive_features(z, features, gamma)).abs().max() < 0.5 * step + 0.51


def test_products_of_features_estimate_the_kernel():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(40, 64, generator=source)
    z = grid.standardise(x + 2 * torch.randn(64, generator=source))
    h = RandomFourier(64, 20_000, seed=0, gamma=1 / 64)(z).double() / 512
    estimated = 2 * h @ h.T / 20_000
    kernel = (-torch.cdist(z.double() / 64, z.double() / 64).square() / 64).exp()
    # the deviation of a mean of 20 000 products of cosines is at most 1 / sqrt(20 000), or 0.007
    assert (estimated - kernel).abs().max() < 0.04


def test_gamma_is_one_part_in_the_number_of_inputs():
    x, y = made_samples("short")
    auto, given = (learned(KernelLDA(width=20, gamma=g), x, y) for g in ("auto", 1 / 3))
    assert auto.sums_sha256() == given.sums_sha256()
    assert learned(KernelLDA(width=20, gamma=0.5), x, y).sums_sha256() != auto.sums_sha256()


def test_the_width_is_four_times_the_inputs_up_to_10_000():
    assert [KernelLDA().features_for(inputs) for inputs in (3, 2501)] == [12, 10_000]
    assert KernelLDA(width=7).features_for(64) == 7


def test_it_tells_rings_apart_and_slda_does_not():
    source = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    turn = 2 * math.pi * torch.rand(400, generator=source)
    x = torch.stack([turn.cos(), turn.sin()], dim=1) * (1 + 2 * y).unsqueeze(1)
    x = x + 0.1 * torch.randn(400, 2, generator=source)
    right = {name: (learned(learner, x, y).predict(x) == y).float().mean()
             for name, learner in (("kernel", KernelLDA(width=60)), ("slda", SLDA()))}  # fmt: skip
    assert right["kernel"] > 0.97
    assert right["slda"] < 0.7


@pytest.mark.parametrize("settings", [{"width": 0}, {"gamma": 0.0}, {"gamma": -1.0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(InputError, match=f"{next(iter(settings))} must be"):
        KernelLDA(**settings)
