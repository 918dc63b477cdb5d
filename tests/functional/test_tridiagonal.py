"""Penalised least squares by a tridiagonal Gram matrix equals the direct solution."""

from __future__ import annotations

import pytest
import torch

from onepass.functional import closed_form
from onepass.functional.closed_form import Moments
from onepass.functional.tridiagonal import Tridiagonal


def problem(samples: int, width: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(samples + width)
    features = torch.randn(samples, width, generator=drawn, dtype=torch.float64).relu()
    targets = torch.randn(samples, classes, generator=drawn, dtype=torch.float64)
    return features.T @ features, features.T @ targets


@pytest.mark.parametrize(
    ("samples", "width", "classes"),
    [(9, 2, 1), (40, 3, 5), (200, 64, 10), (20, 50, 1), (100, 30, 40)],
)
def test_weights_and_eigenvalues_are_those_of_a_direct_solution(
    samples: int, width: int, classes: int
) -> None:
    gram, cross = problem(samples, width, classes)
    reduced = Tridiagonal(gram.clone(), cross)
    found = torch.linalg.eigvalsh(gram).clamp(min=0)
    torch.testing.assert_close(reduced.values, found, rtol=1e-10, atol=1e-10)
    for strength in (1e-3, 1.0, 1e4):
        expected = torch.linalg.solve(gram + strength * torch.eye(width).double(), cross)
        weights = reduced.turn_back(reduced.solve(strength))
        torch.testing.assert_close(weights, expected, rtol=1e-8, atol=1e-10)


def test_a_turn_changes_no_product() -> None:
    gram, cross = problem(80, 20, 4)
    reduced = Tridiagonal(gram, cross)
    torch.testing.assert_close(reduced.cross.T @ reduced.cross, cross.T @ cross)
    torch.testing.assert_close(reduced.turn_back(reduced.cross), cross)


def test_only_the_gram_matrix_is_overwritten() -> None:
    gram, cross = problem(80, 20, 4)
    before = cross.clone()
    reduced = Tridiagonal(gram, cross)
    turned, solved = reduced.cross.clone(), reduced.solve(1.0)
    reduced.turn_back(solved)
    assert torch.equal(cross, before)
    assert torch.equal(reduced.cross, turned)
    assert torch.equal(reduced.solve(1.0), solved)


@pytest.mark.parametrize(("samples", "width"), [(200, 30), (25, 60), (3000, 5)])
def test_both_ways_choose_the_same_strength_and_weights(
    samples: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = torch.Generator().manual_seed(width)
    rows = torch.randint(4, (samples,), generator=drawn)
    h = torch.randn(samples, width, generator=drawn).double() + 0.5 * rows.unsqueeze(1)
    onehot = torch.eye(4).double()[rows]
    moments = Moments(onehot.sum(0), onehot.T @ h, h.square().sum(0), h.T @ h)
    quick = closed_form.ridge(moments)
    monkeypatch.setattr(closed_form, "ROUNDING", 1e-9)  # so that no strength is above rounding
    slow = closed_form.ridge(moments)
    assert quick.strength == pytest.approx(slow.strength)
    assert quick.freedom == pytest.approx(slow.freedom)
    assert quick.residual == pytest.approx(slow.residual, rel=1e-6)
    torch.testing.assert_close(quick.linear.weight, slow.linear.weight, rtol=1e-6, atol=1e-9)
