"""Penalised least squares by a reduced Gram matrix equals the direct solution, on both ways."""

from __future__ import annotations

import pytest
import torch

from onepass.functional import penalised
from onepass.functional.penalised import Diagonal, Tridiagonal


def problem(samples: int, width: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(samples + width)
    features = torch.randn(samples, width, generator=drawn, dtype=torch.float64).relu()
    targets = torch.randn(samples, classes, generator=drawn, dtype=torch.float64)
    return features.T @ features, features.T @ targets


@pytest.mark.parametrize("way", [Tridiagonal, Diagonal])
@pytest.mark.parametrize(
    ("samples", "width", "classes"),
    [(9, 2, 1), (40, 3, 5), (200, 64, 10), (20, 50, 1), (100, 30, 40)],
)
def test_weights_and_eigenvalues_are_those_of_a_direct_solution(
    way: type, samples: int, width: int, classes: int
) -> None:
    gram, cross = problem(samples, width, classes)
    reduced = way(gram.clone(), cross)
    found = torch.linalg.eigvalsh(gram).clamp(min=0)
    torch.testing.assert_close(reduced.values, found, rtol=1e-10, atol=1e-10)
    for strength in (1e-3, 1.0, 1e4):
        expected = torch.linalg.solve(gram + strength * torch.eye(width).double(), cross)
        weights = reduced.turn_back(reduced.solve(strength))
        torch.testing.assert_close(weights, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("way", [Tridiagonal, Diagonal])
def test_a_turn_changes_no_norm_and_no_product(way: type) -> None:
    gram, cross = problem(80, 20, 4)
    reduced = way(gram.clone(), cross)
    torch.testing.assert_close(reduced.cross.T @ reduced.cross, cross.T @ cross)
    torch.testing.assert_close(reduced.turn_back(reduced.cross), cross)


def test_neither_side_of_the_equations_but_the_gram_matrix_is_overwritten() -> None:
    gram, cross = problem(80, 20, 4)
    before = cross.clone()
    reduced = penalised.reduce(gram, cross)
    turned = reduced.cross.clone()
    solved = reduced.solve(1.0)
    reduced.turn_back(solved)
    assert torch.equal(cross, before)
    assert torch.equal(reduced.cross, turned)
    assert torch.equal(reduced.solve(1.0), solved)


@pytest.mark.parametrize("value", [0.0, 4.0])
def test_one_feature_alone_is_solved_too(value: float) -> None:
    gram, cross = torch.full((1, 1), value).double(), torch.ones(1, 2).double()
    reduced = penalised.reduce(gram, cross)
    expected = torch.full((1, 2), 1 / (value + 1)).double()
    torch.testing.assert_close(reduced.turn_back(reduced.solve(1.0)), expected)
