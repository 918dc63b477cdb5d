"""Tests ridge regression from samples to predictions."""

import numpy as np
import pytest
import torch
from closed_forms import learned, made_samples
from sklearn import linear_model

from onepass import InputError, Ridge
from onepass.functional import grid


@pytest.mark.parametrize("strength", [1e-3, 1.0, 1000.0])
@pytest.mark.parametrize(("kind", "n"), [("vectors", 300), ("vectors", 24), ("short", 100)])
def test_scores_are_scikit_learns_in_proportion(kind, n, strength):
    x, y = made_samples(kind, n=n)
    z = grid.scale(x, 1.0)[0] if kind == "short" else grid.standardise(x)
    h = z.double().numpy() / 64
    targets = torch.nn.functional.one_hot(y).numpy()
    wanted = linear_model.Ridge(alpha=strength).fit(h, targets).predict(h)
    found = learned(Ridge(strength=strength), x, y).scores(x).numpy()
    ratio = np.abs(found).max() / np.abs(wanted).max()
    assert np.allclose(found, wanted * ratio, atol=1e-4 * ratio)


@pytest.mark.parametrize("strength", [1e-300, 1e-9])
def test_a_tiny_strength_of_fewer_samples_than_values_is_solved(strength):
    x, y = made_samples(n=12)
    learner = learned(Ridge(strength=strength), x, y)
    assert torch.equal(learner.predict(x), y)


@pytest.mark.parametrize("strength", [0, -1.0, "most"])
def test_a_bad_strength_is_refused(strength):
    with pytest.raises(InputError, match="strength must be"):
        Ridge(strength=strength)


def test_probabilities_of_new_samples_are_near_their_accuracy():
    x, y = made_samples(n=3000)
    x = x + 3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    learner = learned(Ridge(), x[:1500], y[:1500])
    top, chosen = learner.scores(x[1500:]).softmax(dim=1).max(dim=1)
    accuracy = float((torch.tensor(learner.classes)[chosen] == y[1500:]).float().mean())
    assert 0.4 < accuracy < 0.99
    assert abs(float(top.mean()) - accuracy) < 0.05
