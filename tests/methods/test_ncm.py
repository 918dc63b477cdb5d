"""Tests NCM from samples to predictions."""

import numpy as np
import pytest
import torch
from closed_forms import learned, made_samples
from sklearn.neighbors import NearestCentroid

from onepass import NCM
from onepass.functional import grid


@pytest.mark.parametrize("kind", ["vectors", "short", "images"])
def test_predictions_are_those_of_the_nearest_centroid(kind):
    x, y = made_samples(kind, n=200)
    flat = x.flatten(1)
    z = grid.scale(flat, 1.0)[0] if kind == "short" else grid.standardise(flat)
    centroids = NearestCentroid().fit(z.numpy(), y.numpy())
    assert np.array_equal(learned(NCM(), x, y).predict(x), centroids.predict(z.numpy()))


def test_it_keeps_a_sum_for_each_class_whatever_the_number_of_samples():
    x, y = made_samples(n=200)
    few, many = learned(NCM(), x[:20], y[:20]), learned(NCM(), x, y)
    many.sums_sha256()
    few.sums_sha256()
    # counts of 4 classes, 4 sums and one of squares, in 33 dimensions, in float64
    assert few._sums.bytes == many._sums.bytes == 8 * (4 + 4 * 33 + 33)
    assert len(many.kept.y) == 0


def test_the_mean_and_deviation_of_short_samples_are_applied_first():
    x, y = made_samples("short")
    standardised = NCM(mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 0.5))
    by_hand = (x - torch.tensor([1.0, 2, 3])) / torch.tensor([2.0, 4, 0.5])
    assert torch.equal(
        learned(standardised, x, y).scores(x), learned(NCM(), by_hand, y).scores(by_hand)
    )
