"""Tests SLDA from samples to predictions."""

import numpy as np
import pytest
import torch
from closed_forms import learned, made_samples
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from onepass import NCM, SLDA
from onepass.functional import grid


@pytest.mark.parametrize(("kind", "n"), [("vectors", 300), ("vectors", 24), ("short", 100)])
def test_probabilities_are_scikit_learns(kind, n):
    x, y = made_samples(kind, n=n)
    z = grid.scale(x, 1.0)[0] if kind == "short" else grid.standardise(x)
    h = z.double().numpy() / 64
    classes = y.unique().tolist()
    means = {label: h[y == label].mean(axis=0) for label in classes}
    within = np.stack([row - means[label] for row, label in zip(h, y.tolist(), strict=True)])

    class Shrunk:
        """The covariance of all classes, shrunk: scikit-learn shrinks each class alone."""

        def fit(self, _):
            self.covariance_ = oas(within, assume_centered=True)[0]
            return self

    sklearns = LinearDiscriminantAnalysis(
        solver="lsqr", covariance_estimator=Shrunk(), priors=[1 / len(classes)] * len(classes)
    ).fit(h, y)
    found = learned(SLDA(), x, y).scores(x).softmax(dim=1)
    assert np.allclose(found, sklearns.predict_proba(h), atol=1e-4)


def test_correlated_columns_matter_to_it_and_not_to_ncm():
    """Two classes that only the difference of two noisy columns tells apart."""
    source = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    noise, signal = torch.randn(400, 1, generator=source), 0.2 * (2 * y - 1).unsqueeze(1)
    x = torch.cat([5 * noise + signal, 5 * noise - signal], dim=1)
    right = {kind: (learned(kind(), x, y).predict(x) == y).float() for kind in (SLDA, NCM)}
    assert right[SLDA].mean() > 0.95
    assert right[NCM].mean() < 0.7
