"""Penalised least squares for many strengths, after one reduction of the Gram matrix, on a CPU.

    W(s) = (G + s I)^-1 Q,    G (D, D) symmetric without negative eigenvalues, Q (D, C)

Householder reflections give G = U T U^T with a tridiagonal T, so that W(s) = U (T + s I)^-1 U^T Q.
Eigenvectors, which take most of the time of an eigendecomposition, are not needed, and a strength
costs D x C operations.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from onepass.functional.exact import Array, blas_threads

BLOCK = 64  # columns that LAPACK may work on at a time


class Tridiagonal:
    """G as a tridiagonal matrix T with its eigenvalues, `values` (D) in ascending order, and Q as
    `cross`, U^T Q (D, C). All is float64. The matrix G is overwritten."""

    def __init__(self, gram: Tensor, cross: Tensor) -> None:
        count = len(gram)
        columns = gram.contiguous().numpy().T  # the same matrix in Fortran's order, not a copy
        with blas_threads():
            size = int(lapack.dsytrd_lwork(count, lower=1)[0])
            packed, self.diagonal, self.beside, self.factors, _ = lapack.dsytrd(
                columns, lower=1, lwork=size, overwrite_a=1
            )
            values, _ = lapack.dsterf(self.diagonal, self.beside)
        # Reflection j is in column j, below the diagonal. A matrix that begins one row lower has
        # them as a QR decomposition leaves them, so its routine can apply them.
        flat = packed.reshape(-1, order="F")
        self.reflections = flat[1 : 1 + count * (count - 1)].reshape(count, count - 1, order="F")
        self.values = torch.from_numpy(values).clamp_(min=0)
        self.cross = self._turned(cross, "T")

    def solve(self, strength: float) -> Tensor:
        """Returns (T + strength I)^-1 U^T Q, (D, C)."""
        *_, solved, _ = lapack.dptsv(self.diagonal + strength, self.beside, self.cross.numpy())
        return torch.from_numpy(solved)

    def turn_back(self, solved: Tensor) -> Tensor:
        """Returns the weights W, (D, C): U times what `solve` returned."""
        return self._turned(solved, "N")

    def _turned(self, columns: Tensor, side: str) -> Tensor:
        """Returns U, or U^T for side T, times these columns (D, C)."""
        turned: Array = np.array(columns.numpy(), order="F")
        with blas_threads():
            turned[1:] = lapack.dormqr(
                "L", side, self.reflections, self.factors, turned[1:], BLOCK * columns.shape[1]
            )[0]
        return torch.from_numpy(turned)
