"""Tests of the solvers against scikit-learn, brute force, recursive updates and limits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid

from onepass.functional import closed_form, grid
from onepass.functional.closed_form import LADDER, Moments

QUICK = settings(max_examples=40, deadline=None)


def samples(n, d, classes, seed=0, apart=1.0):
    """Returns samples on the grid in units of 1, (n, d) in float64, and a class for each."""
    source = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, d, generator=source) * apart
    mix = torch.randn(d, d, generator=source)
    x = centres[y] + torch.randn(n, d, generator=source) @ mix
    return (grid.scale(x, 1.0)[0] / grid.STEPS).double(), y


def moments_of(h, y):
    one_hot = torch.nn.functional.one_hot(y).double()
    return Moments(one_hot.sum(dim=0), one_hot.T @ h, h.square().sum(dim=0), (h.T @ h).triu())


def scores(linear, h):
    return h @ linear.weight + linear.bias


def differences(values):
    """Returns scores less their mean over classes, which is all that a softmax sees."""
    return values - values.mean(dim=1, keepdim=True)


def close(a, b, tolerance=1e-8):
    return torch.allclose(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance)


# ---- Gaussian models


def test_nearest_mean_is_the_nearest_centroid():
    h, y = samples(200, 7, 5)
    found = scores(closed_form.nearest_mean(moments_of(h, y)), h).argmax(dim=1)
    assert np.array_equal(found, NearestCentroid().fit(h, y).predict(h))


def test_nearest_mean_is_the_posterior_of_a_gaussian_model():
    h, y = samples(200, 7, 5)
    means = torch.stack([h[y == c].mean(dim=0) for c in range(5)])
    variance = (h - means[y]).square().mean()
    log_likelihood = -(h.unsqueeze(1) - means).square().sum(dim=2) / (2 * variance)
    found = scores(closed_form.nearest_mean(moments_of(h, y)), h)
    assert close(found.softmax(dim=1), log_likelihood.softmax(dim=1))


def test_the_discriminant_with_the_identity_as_covariance_is_nearest_mean():
    """Each class has its mean plus and minus every unit vector: S is a multiple of I."""
    d = 6
    offsets = 2 * torch.cat([torch.eye(d), -torch.eye(d)]).double()
    centres = samples(4, d, 4)[0]
    h = (centres.unsqueeze(1) + offsets).flatten(0, 1)
    y = torch.arange(4).repeat_interleave(2 * d)
    x, _ = samples(50, d, 2, seed=1)
    found = [
        differences(scores(solve(moments_of(h, y)), x))
        for solve in (closed_form.nearest_mean, closed_form.discriminant)
    ]
    assert close(*found)


@pytest.mark.parametrize(("n", "d", "classes"), [(300, 8, 4), (40, 30, 3), (21, 60, 2)])
def test_the_discriminant_is_scikit_learns(n, d, classes):
    h, y = samples(n, d, classes)
    own = moments_of(h, y)
    found = differences(scores(closed_form.discriminant(own), h))
    within = h - own.means[y]
    # scikit-learn shrinks each class alone; its estimator hook takes the shrunk whole instead
    shrunk = oas(within.numpy(), assume_centered=True)[0]

    class Whole:
        def fit(self, _):
            self.covariance_ = shrunk
            return self

    sklearns = LinearDiscriminantAnalysis(
        solver="lsqr", covariance_estimator=Whole(), priors=[1 / classes] * classes
    ).fit(h, y)
    logits = torch.tensor(sklearns.predict_log_proba(h))
    assert close(found, differences(logits), 1e-6)
    assert np.array_equal(found.argmax(dim=1), sklearns.predict(h))


@QUICK
@given(st.integers(2, 60), st.integers(2, 12), st.integers(0, 999))
def test_shrinkage_is_scikit_learns(n, d, seed):
    h, _ = samples(n, d, 1, seed)
    centred = h - h.mean(dim=0)
    covariance = centred.T @ centred / n
    assert close(closed_form.shrink(covariance, n), oas(centred.numpy(), assume_centered=True)[0])


def test_a_multiple_of_the_identity_is_shrunk_to_itself():
    one = 3 * torch.eye(5).double()
    assert close(closed_form.shrink(one, 10.0), one)


@pytest.mark.parametrize("solve", [closed_form.nearest_mean, closed_form.discriminant])
def test_a_shift_of_all_samples_changes_no_decision(solve):
    h, y = samples(200, 7, 5)
    before = scores(solve(moments_of(h, y)), h)
    after = scores(solve(moments_of(h + 3, y)), h + 3)
    assert close(differences(before), differences(after))


# ---- ridge regression


@pytest.mark.parametrize("strength", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize(("n", "d"), [(300, 8), (20, 50)])
def test_ridge_is_scikit_learns(n, d, strength):
    h, y = samples(n, d, 4)
    targets = torch.nn.functional.one_hot(y).double()
    fit = closed_form.ridge(moments_of(h, y), strength)
    sklearns = Ridge(alpha=strength).fit(h, targets)
    assert close(fit.linear.weight.T, sklearns.coef_, 1e-6)
    assert close(fit.linear.bias, sklearns.intercept_, 1e-6)
    assert fit.residual == pytest.approx(
        float((targets - scores(fit.linear, h)).square().sum()), rel=1e-6, abs=1e-9
    )


@pytest.mark.parametrize("strength", [1e-2, 10.0])
def test_recursive_least_squares_is_ridge(strength):
    """Recursive least squares updates the inverse R and the weights W by each batch: here without
    an intercept, on centred samples and targets, whose ridge regression is the same."""
    h, y = samples(200, 9, 3)
    targets = torch.nn.functional.one_hot(y).double()
    x, t = h - h.mean(dim=0), targets - targets.mean(dim=0)
    r, w = torch.eye(9).double() / strength, torch.zeros(9, 3).double()
    for batch, wanted in zip(x.split(10), t.split(10), strict=True):
        gain = r @ batch.T @ torch.linalg.inv(torch.eye(10) + batch @ r @ batch.T)
        r = r - gain @ batch @ r
        w = w + r @ batch.T @ (wanted - batch @ w)
    assert close(closed_form.ridge(moments_of(h, y), strength).linear.weight, w)


def hat_matrix(h, strength):
    """Returns the matrix that maps targets to their estimates."""
    x = h - h.mean(dim=0)
    inner = x.T @ x + strength * torch.eye(h.shape[1])
    return 1 / len(h) + x @ torch.linalg.solve(inner, x.T)


def brute_force_gcv(h, y, strength):
    targets = torch.nn.functional.one_hot(y).double()
    hat, n = hat_matrix(h, strength), len(h)
    residual = (targets - hat @ targets).square().sum()
    return float(residual / n / (1 - hat.trace() / n) ** 2)


def ladder_of(h):
    """Returns the candidate strengths."""
    x = h - h.mean(dim=0)
    return [float(x.square().sum() / h.shape[1]) * 2.0**step for step in LADDER.tolist()]


@pytest.mark.parametrize("strength", [1e-2, 1.0, 300.0])
def test_degrees_of_freedom_are_the_trace_of_the_hat_matrix(strength):
    h, y = samples(60, 11, 3)
    fit = closed_form.ridge(moments_of(h, y), strength)
    assert fit.freedom == pytest.approx(float(hat_matrix(h, strength).trace()))


@pytest.mark.parametrize("apart", [0.0, 1.0, 30.0])
@pytest.mark.parametrize(("n", "d"), [(300, 8), (60, 50), (41, 40), (20, 64), (90, 120)])
def test_the_strength_minimises_generalised_cross_validation_by_brute_force(n, d, apart):
    h, y = samples(n, d, 4, seed=1, apart=apart)
    fit = closed_form.ridge(moments_of(h, y))
    gcv = [brute_force_gcv(h, y, strength) for strength in ladder_of(h)]
    chosen = min(range(len(gcv)), key=gcv.__getitem__)
    assert fit.strength == pytest.approx(ladder_of(h)[chosen])
    own = fit.residual / n / (1 - fit.freedom / n) ** 2
    assert own == pytest.approx(gcv[chosen], rel=1e-5)


def test_a_chosen_strength_gives_the_same_fit_when_it_is_given():
    h, y = samples(120, 20, 4)
    chosen = closed_form.ridge(moments_of(h, y))
    given = closed_form.ridge(moments_of(h, y), chosen.strength)
    assert close(chosen.linear.weight, given.linear.weight)
    assert close(chosen.linear.bias, given.linear.bias)
    assert chosen.freedom == pytest.approx(given.freedom)
    assert chosen.residual == pytest.approx(given.residual)


def test_noise_gets_more_penalty_than_signal():
    strengths = [
        closed_form.ridge(moments_of(*samples(100, 30, 4, seed=1, apart=apart))).strength
        for apart in (0.0, 30.0)
    ]
    assert strengths[0] > 100 * strengths[1]


def test_an_infinite_strength_gives_the_shares_of_the_classes():
    h, y = samples(90, 5, 3)
    fit = closed_form.ridge(moments_of(h, y), 1e15)
    assert close(scores(fit.linear, h), torch.full((90, 3), 1 / 3, dtype=torch.float64))
    assert fit.freedom == pytest.approx(1)


# ---- probabilities


@QUICK
@given(st.integers(4, 80), st.integers(1, 30), st.integers(2, 4), st.integers(0, 999))
def test_a_temperature_keeps_the_order_of_classes(n, d, classes, seed):
    h, y = samples(n, d, classes, seed)
    moments = moments_of(h, y)
    fit = closed_form.ridge(moments)
    raw = scores(fit.linear, h)
    scaled = scores(closed_form.calibrated(fit, moments), h)
    ratio = float(scaled.abs().max() / raw.abs().max())
    assert 0 < ratio < math.inf
    assert close(scaled, raw * ratio, 1e-6)


def test_probabilities_of_a_gaussian_model_are_calibrated():
    """Two classes whose samples have the model's distribution: the mean probability of the chosen
    class is the accuracy on new samples."""
    source = torch.Generator().manual_seed(0)
    y = torch.randint(2, (6000,), generator=source)
    h = torch.randn(6000, 10, generator=source).double() + 0.3 * (2 * y - 1).unsqueeze(1)
    moments = moments_of(h[:3000], y[:3000])
    fit = closed_form.ridge(moments)
    for linear in (
        closed_form.nearest_mean(moments),
        closed_form.discriminant(moments),
        closed_form.calibrated(fit, moments),
    ):
        top, chosen = scores(linear, h[3000:]).softmax(dim=1).max(dim=1)
        accuracy = float((chosen == y[3000:]).double().mean())
        assert abs(float(top.mean()) - accuracy) < 0.03


# ---- degenerate sums

SOLVERS = {
    "nearest_mean": closed_form.nearest_mean,
    "discriminant": closed_form.discriminant,
    "ridge": lambda m: closed_form.calibrated(closed_form.ridge(m), m),
    "ridge 1": lambda m: closed_form.calibrated(closed_form.ridge(m, 1.0), m),
    "ridge 1e-12": lambda m: closed_form.calibrated(closed_form.ridge(m, 1e-12), m),
}


def repeated(times, shift=0.0):
    """Returns three samples, of a class each, and each of them several times."""
    h, y = samples(3, 5, 3)
    return (h + shift).repeat(times, 1), y.repeat(times)


CASES = {
    "one sample": lambda: samples(1, 5, 1),
    "one class": lambda: samples(30, 5, 1),
    "one class in fewer samples than dimensions": lambda: samples(4, 20, 1),
    "a sample of each class": lambda: samples(3, 5, 3),
    "duplicates": lambda: repeated(7),
    "many duplicates far from zero": lambda: repeated(999, 50.0),
    "fewer samples than dimensions": lambda: samples(12, 50, 3),
    "a constant column": lambda: (samples(40, 6, 3)[0].index_fill(1, torch.tensor(2), 5.0),
                                  samples(40, 6, 3)[1]),
    "equal columns": lambda: (samples(40, 6, 3)[0][:, [0, 1, 1, 1, 2]], samples(40, 6, 3)[1]),
    "zeros": lambda: (torch.zeros(20, 4).double(), torch.arange(20) % 3),
    "zeros of one class": lambda: (torch.zeros(20, 4).double(), torch.zeros(20).long()),
    "equal samples of several classes": lambda: (torch.full((21, 4), 1.3).double().mul(64).round()
                                                 / 64, torch.arange(21) % 3),
    "one dimension": lambda: samples(30, 1, 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_degenerate_sums_give_finite_probabilities(solver, case):
    h, y = CASES[case]()
    found = scores(SOLVERS[solver](moments_of(h, y)), h)
    assert bool(torch.isfinite(found).all())
    assert found.abs().max() < 1e9
    elsewhere = scores(SOLVERS[solver](moments_of(h, y)), h + 1)
    assert bool(torch.isfinite(elsewhere).all())


@pytest.mark.parametrize("case", ["a sample of each class", "duplicates",
                                  "many duplicates far from zero"])  # fmt: skip
@pytest.mark.parametrize("solver", SOLVERS)
def test_samples_that_are_all_known_are_recognised(solver, case):
    h, y = CASES[case]()
    assert torch.equal(scores(SOLVERS[solver](moments_of(h, y)), h).argmax(dim=1), y)


@pytest.mark.parametrize("case", ["equal samples of several classes", "zeros"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_samples_that_tell_nothing_give_equal_probabilities(solver, case):
    h, y = CASES[case]()
    y = torch.arange(len(h)) % 3
    h, y = h[:18], y[:18]  # six of each class
    for x in (h, h + 1):
        found = scores(SOLVERS[solver](moments_of(h, y)), x).softmax(dim=1)
        assert close(found, torch.full_like(found, 1 / 3), 1e-6)


@pytest.mark.parametrize("times", [0.37, 0.001, 1e-9])
@pytest.mark.parametrize("solver", SOLVERS)
def test_sums_that_are_no_longer_exact_are_solved(solver, times):
    """Sums that fade are rounded, so that a spread of zero becomes a little more or less."""
    for h, y in (repeated(3), repeated(7, 50.0), samples(3, 40, 3)):
        exact = moments_of(h, y)
        faded = Moments(*(part * times for part in exact))
        found = scores(SOLVERS[solver](faded), h)
        assert torch.equal(found.argmax(dim=1), scores(SOLVERS[solver](exact), h).argmax(dim=1))


def test_a_class_of_tiny_weight_is_one_more_class():
    """Sums that fade reach any weight."""
    h, y = samples(60, 6, 3)
    moments = moments_of(h, y)
    faded = torch.tensor([1.0, 1.0, 1e-200], dtype=torch.float64)
    light = Moments(
        moments.counts * faded, moments.totals * faded.unsqueeze(1), moments.squares, moments.gram
    )
    for solve in SOLVERS.values():
        assert bool(torch.isfinite(scores(solve(light), h)).all())
