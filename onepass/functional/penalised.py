"""Penalised least squares for many strengths, after one reduction of the Gram matrix.

    W(s) = (G + s I)^-1 Q,    G (D, D) symmetric without negative eigenvalues, Q (D, C)

With G = U T U^T, W(s) = U (T + s I)^-1 U^T Q. On a CPU, T is tridiagonal: U is a product of
Householder reflections, eigenvectors are never computed, and a strength costs D x C operations. A
GPU has no such routine, but a fast eigendecomposition: there T is diagonal.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from onepass.functional.exact import Array, blas_threads

BLOCK = 64  # columns that LAPACK may work on at a time


class Reduced(Protocol):
    """A reduced Gram matrix T, with its `values`, the eigenvalues in ascending order (D)."""

    values: Tensor
    cross: Tensor  # U^T Q, (D, C)

    def solve(self, strength: float) -> Tensor:
        """Returns (T + strength I)^-1 U^T Q, (D, C)."""
        ...

    def turn_back(self, solved: Tensor) -> Tensor:
        """Returns U times what `solve` returned: the weights."""
        ...


def reduce(gram: Tensor, cross: Tensor) -> Reduced:
    """Returns the reduced form of G and Q, in float64. The Gram matrix is overwritten."""
    if gram.device.type == "cpu" and len(gram) > 1:
        return Tridiagonal(gram, cross)
    return Diagonal(gram, cross)


class Diagonal:
    """A Gram matrix by its eigenvectors."""

    def __init__(self, gram: Tensor, cross: Tensor) -> None:
        values, self.vectors = torch.linalg.eigh(gram)
        self.values = values.clamp(min=0)
        self.cross = self.vectors.T @ cross

    def solve(self, strength: float) -> Tensor:
        solved: Tensor = self.cross / (self.values + strength).unsqueeze(1)
        return solved

    def turn_back(self, solved: Tensor) -> Tensor:
        weights: Tensor = self.vectors @ solved
        return weights


class Tridiagonal:
    """A Gram matrix by Householder reflections."""

    def __init__(self, gram: Tensor, cross: Tensor) -> None:
        from scipy.linalg import lapack

        columns = gram.contiguous().numpy().T  # the same matrix in Fortran's order, not a copy
        with blas_threads():
            size = int(lapack.dsytrd_lwork(len(gram), lower=1)[0])
            packed, self.diagonal, self.beside, self.factors, _ = lapack.dsytrd(
                columns, lower=1, lwork=size, overwrite_a=1
            )
            values, _ = lapack.dsterf(self.diagonal, self.beside)
        # Reflection j is in column j, below the diagonal. A matrix that begins one row lower has
        # them as a QR decomposition leaves them, so its routine can apply them.
        count = len(gram)
        flat = packed.reshape(-1, order="F")
        self.reflections = flat[1 : 1 + count * (count - 1)].reshape(count, count - 1, order="F")
        self.values = torch.from_numpy(values).clamp_(min=0)
        self.cross = self._turned(cross, "T")

    def _turned(self, columns: Tensor, side: str) -> Tensor:
        """Returns U or U^T (side T) times these columns (D, C)."""
        from scipy.linalg import lapack

        turned: Array = np.array(columns.numpy(), order="F")
        with blas_threads():
            turned[1:] = lapack.dormqr(
                "L", side, self.reflections, self.factors, turned[1:], BLOCK * columns.shape[1]
            )[0]
        return torch.from_numpy(turned)

    def solve(self, strength: float) -> Tensor:
        from scipy.linalg import lapack

        *_, solved, _ = lapack.dptsv(self.diagonal + strength, self.beside, self.cross.numpy())
        return torch.from_numpy(solved)

    def turn_back(self, solved: Tensor) -> Tensor:
        return self._turned(solved, "N")
