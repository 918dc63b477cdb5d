"""Closed-form classifiers from sums over samples: Gaussian models with one covariance, and ridge
regression with generalised cross-validation.

    n     samples, n_c of class c                               (C)
    m_c   mean of class c; m, the mean of all samples      (C, D) (D)
    G     sum of h h^T over samples h                        (D, D)

Everything here is float64. The scores of a sample are h W + b. They are logits: their softmax is
the probability of each class under the model that the function names.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LADDER = torch.arange(-24, 13)  # candidate strengths: mean eigenvalue x 2^-24 ... 2^12
LEAST_LEFT = 1e-4  # of 1 - df / n: below it the residual is mostly rounding
SMALLEST_TEMPERATURE = 1e-3
# Differences of sums have rounding errors up to this share of the sums. Anything below it is 0.
ROUNDING = 2.0**-48


class Moments(NamedTuple):
    """The sums over samples that the solvers need: `counts` (C), `totals` (C, D), and `gram`
    (D, D), or `squares`, its diagonal (D), where there is no Gram matrix."""

    counts: Tensor
    totals: Tensor
    squares: Tensor
    gram: Tensor | None = None

    @property
    def samples(self) -> float:
        return float(self.counts.sum())

    @property
    def means(self) -> Tensor:
        """The mean of each class, (C, D)."""
        return self.totals / self.counts.unsqueeze(1)

    @property
    def mean(self) -> Tensor:
        """The mean of all samples, (D)."""
        return self.totals.sum(dim=0) / self.samples


class Linear(NamedTuple):
    """A linear classifier: scores are h @ weight + bias."""

    weight: Tensor  # (D, C)
    bias: Tensor  # (C)


class RidgeFit(NamedTuple):
    """A ridge regression onto one-hot targets: the `linear` map to estimates of the targets, the
    `strength` of its penalty, its degrees of `freedom`, and the `residual` sum of squares."""

    linear: Linear
    strength: float
    freedom: float
    residual: float


# ---- Gaussian models: every class has the same covariance, and all classes are equally likely


def nearest_mean(moments: Moments) -> Linear:
    """Returns the scores of a Gaussian model whose covariance is the same in every direction: the
    class with the nearest mean is the likeliest.

    s_c(h) = (m_c . h - |m_c|^2 / 2) / variance, with the variance within classes
    """
    means, n = moments.means, moments.samples
    within = moments.squares.sum() - (moments.counts * means.square().sum(dim=1)).sum()
    certain = within > ROUNDING * moments.squares.sum()
    variance = torch.where(certain, within / (n * means.shape[1]), 1.0)
    return _gaussian(means, moments.mean, (means - moments.mean) / variance)


def discriminant(moments: Moments) -> Linear:
    """Returns the scores of a Gaussian model with a full covariance, estimated within classes and
    shrunk towards a multiple of the identity: linear discriminant analysis.

    s_c(h) = m_c^T S^-1 h - m_c^T S^-1 m_c / 2
    """
    means, n = moments.means, moments.samples
    scatter = _full(moments) - means.T @ (moments.counts.unsqueeze(1) * means)
    rounding = ROUNDING * moments.squares.sum()
    certain = scatter.diagonal().sum() > rounding
    covariance = shrink(scatter / n if certain else torch.zeros_like(scatter), n)
    covariance.diagonal().add_(rounding / n)  # now rounding cannot make it indefinite
    factor = torch.linalg.cholesky(covariance)
    solved = torch.cholesky_solve((means - moments.mean).T, factor)  # S^-1 (m_c - m), (D, C)
    return _gaussian(means, moments.mean, solved.T)


def shrink(covariance: Tensor, samples: float) -> Tensor:
    """Returns a covariance S (d, d) shrunk towards u I, u = tr S / d, by the oracle approximating
    shrinkage of Chen, Wiesel, Eldar and Hero (2010), in the form that scikit-learn has:

    r = min(1, (a + u^2) / ((n + 1) (a - u^2 / d))), with a the mean of the squared entries of S

    A covariance of zeros becomes the identity.
    """
    d = len(covariance)
    u, a = covariance.diagonal().mean(), covariance.square().mean()
    if not u > 0:  # each sample is the mean of its class
        return torch.eye(d, dtype=covariance.dtype, device=covariance.device)
    below = (samples + 1) * (a - u.square() / d)
    r = ((a + u.square()) / below).clamp(max=1) if below > 0 else torch.ones_like(u)
    shrunk = (1 - r) * covariance
    shrunk.diagonal().add_(r * u)
    return shrunk


def _gaussian(means: Tensor, centre: Tensor, directions: Tensor) -> Linear:
    """Returns the classifier with these directions S^-1 (m_c - m), (C, D). Subtracting the mean m
    of all samples changes every class's score by the same amount, and rounds less."""
    middle = (means + centre) / 2  # (h - m) . w_c - (m_c - m) . w_c / 2 = (h - (m_c + m) / 2) . w_c
    return Linear(directions.T.contiguous(), -(middle * directions).sum(dim=1))


# ---- ridge regression


def ridge(moments: Moments, strength: float | None = None) -> RidgeFit:
    """Returns the regression onto one-hot targets with an intercept, min |Y - h W - b|^2 +
    strength |W|^2. Without a strength, generalised cross-validation chooses it.

    With centred sums G' = G - n m m^T and Q = [n_c (m_c - m)]: W = (G' + strength I)^-1 Q.
    """
    counts, n, mean = moments.counts, moments.samples, moments.mean
    gram = _full(moments) - n * torch.outer(mean, mean)
    cross = ((moments.means - mean) * counts.unsqueeze(1)).T  # Q, (D, C)
    share = counts / n  # the mean of the targets
    spread = float(n - (counts.square() / n).sum())  # |Y - share|^2
    rounding = ROUNDING * float(moments.squares.sum())
    unit = float(gram.diagonal().mean())  # the mean eigenvalue
    least = unit * 2.0 ** float(LADDER[0]) if strength is None else strength
    if strength is not None and strength > rounding:
        weight, freedom, residual = _penalised(gram, cross, strength, spread)
    elif strength is None and least > rounding and gram.device.type == "cpu" and len(gram) > 1:
        found = _by_tridiagonal(gram, cross, n, spread, unit)
        weight, strength, freedom, residual = found
    else:
        found = _by_eigenvalues(gram, cross, n, spread, rounding, strength)
        weight, strength, freedom, residual = found
    return RidgeFit(Linear(weight, share - mean @ weight), strength, freedom, residual)


def _penalised(
    gram: Tensor, cross: Tensor, strength: float, spread: float
) -> tuple[Tensor, float, float]:
    """Returns the weights (D, C), degrees of freedom and residual at one strength."""
    kept = gram.clone()
    kept.diagonal().add_(strength)
    factor = torch.linalg.cholesky(kept)
    weight = torch.cholesky_solve(cross, factor)
    # trace of (G' + s I)^-1 G' = D - s |L^-1|^2, with the factor L
    one = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    inverse = torch.linalg.solve_triangular(factor, one, upper=False)
    freedom = 1 + len(gram) - strength * float(inverse.square().sum())
    return weight, freedom, _residual(cross, weight, strength, spread)


def _residual(cross: Tensor, weight: Tensor, strength: float, spread: float) -> float:
    """Returns |Y - h W|^2 = |Y|^2 - 2 <Q, W> + <W, G' W>, where G' W = Q - s W. Turning both Q and
    W changes nothing."""
    return max(spread - float((cross * weight).sum() + strength * weight.square().sum()), 0.0)


def _by_tridiagonal(
    gram: Tensor, cross: Tensor, n: float, spread: float, unit: float
) -> tuple[Tensor, float, float, float]:
    """Returns what `_by_eigenvalues` does without a given strength, from a tridiagonal matrix that
    has the eigenvalues of G', in a quarter of the time. It cannot tell eigenvalues from rounding,
    so the smallest strength must be above that. G' is overwritten."""
    from onepass.functional.tridiagonal import Tridiagonal  # which loads SciPy

    reduced = Tridiagonal(gram, cross)
    best, chosen = torch.inf, (reduced.cross, 0.0, 0.0, 0.0)
    for strength in (unit * 2.0 ** LADDER.double()).tolist():
        solved = reduced.solve(strength)
        residual = _residual(reduced.cross, solved, strength, spread)
        freedom = 1 + float((reduced.values / (reduced.values + strength)).sum())
        left = 1 - freedom / n
        score = residual / left**2 if left > LEAST_LEFT else torch.inf
        if score < best or not chosen[1]:
            best, chosen = score, (solved, strength, freedom, residual)
    solved, strength, freedom, residual = chosen
    return reduced.turn_back(solved), strength, freedom, residual


def _by_eigenvalues(
    gram: Tensor, cross: Tensor, n: float, spread: float, rounding: float, strength: float | None
) -> tuple[Tensor, float, float, float]:
    """Returns weights, strength, degrees of freedom and residual at the given strength, or at the
    strength s that minimises

    GCV(s) = (|Y - h W|^2 / n) / (1 - df / n)^2,    df = 1 + sum_j e_j / (e_j + s)

    (Golub, Heath and Wahba, 1979). With G' = V diag(e) V^T and T = V^T Q all of it comes from e and
    the norms of the rows of T, so that one decomposition serves every strength. Eigenvalues that
    may be rounding count as zeros, whose rows of T are zeros, too."""
    values, vectors = torch.linalg.eigh(gram)
    certain = values > rounding
    values = values.where(certain, 0.0)
    turned = (vectors.T @ cross).where(certain.unsqueeze(1), 0.0)  # T
    norms = turned.square().sum(dim=1)
    if strength is None:
        unit = values.mean() if bool(certain.any()) else values.new_ones(())
        ladder = unit * 2.0 ** LADDER.to(values.device, values.dtype)
    else:
        ladder = values.new_tensor([strength])
    penalised = values + ladder.unsqueeze(1)  # (strengths, D)
    freedom = 1 + (values / penalised).sum(dim=1)
    explained = (norms / penalised * (1 + ladder.unsqueeze(1) / penalised)).sum(dim=1)
    residual = (spread - explained).clamp(min=0)
    left = 1 - freedom / n
    score = torch.where(left > LEAST_LEFT, residual / left.square(), torch.inf)
    best = int(score.argmin())
    weight = vectors @ (turned / penalised[best].unsqueeze(1))
    return weight, float(ladder[best]), float(freedom[best]), float(residual[best])


def calibrated(fit: RidgeFit, moments: Moments) -> Linear:
    """Returns a ridge regression's scores as logits: its estimates divided by a temperature.

    The model: the estimates of a sample of class k scatter around their mean M_k with the same
    variance v in every direction (of those in which they sum to 1), and M_k is larger by an amount
    a at its own class than at the others. Then the log-probabilities are the estimates times a / v.
    Both come from the sums, and are corrected for having been fitted: a residual of a sample that
    was left out is 1 / (1 - df/n) times as large, on average.
    """
    counts, classes, n = moments.counts, len(moments.counts), moments.samples
    if classes == 1:
        return fit.linear
    left = max(1 - fit.freedom / n, 1 / n)
    targets = torch.eye(classes, dtype=counts.dtype, device=counts.device)
    missed = targets - (moments.means @ fit.linear.weight + fit.linear.bias)  # E - M, (C, C)
    within = fit.residual - float((counts.unsqueeze(1) * missed.square()).sum())
    # the estimates of a sample sum to 1, so that they scatter in C - 1 directions
    variance = max(within, 0.0) / (n * (classes - 1)) / left**2
    outside = targets - missed / left  # M of samples that were left out
    own = outside.diagonal()
    ahead = float((own - (outside.sum(dim=1) - own) / (classes - 1)).mean())
    temperature = max(variance / ahead, SMALLEST_TEMPERATURE) if ahead > 0 else 1.0
    return Linear(fit.linear.weight / temperature, fit.linear.bias / temperature)


def _full(moments: Moments) -> Tensor:
    """Returns the Gram matrix with both triangles, of which the moments hold the upper one."""
    assert moments.gram is not None
    upper = moments.gram.triu()
    return upper + upper.triu(1).T
