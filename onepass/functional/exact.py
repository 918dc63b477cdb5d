"""Products of matrices of whole numbers, exact to the bit.

A sum of products is exact in float32 while no partial sum passes 2^24. By the inequality of Cauchy
and Schwarz, any partial sum of products of two columns is at most the product of their norms. If
these norms stay below the bound, the result does not depend on the order of the sum, and so not on
the library, the threads or the device. Otherwise the product is computed in float64, where the
bound is 2^53.

On a CPU the products are NumPy's and SciPy's, which no setting of torch reaches (autocast, reduced
precision of matrix products). A GPU may round operands to eleven bits (TF32), so it uses float32
only for operands that fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

EXACT_FLOAT32 = 2**24
EXACT_FLOAT64 = 2**53
ELEVEN_BITS = 2**11
ROWS = 64  # of a matrix that is added to another

Array = np.ndarray[Any, np.dtype[Any]]


def product(a: Tensor, b: Tensor, b_norm: float, b_largest: float) -> Tensor:
    """Returns a @ b for whole numbers a (n, k) and b (k, m) in float32: as float32 if that is
    exact, else as float64. `b_norm` is the largest norm of a column of b, `b_largest` its largest
    value."""
    row_norm = math.sqrt(float(a.square().sum(dim=1, dtype=torch.float64).amax()))
    exact = row_norm * b_norm < EXACT_FLOAT32
    if a.device.type == "cpu":
        x, y = (a.numpy(), b.numpy()) if exact else (a.double().numpy(), b.double().numpy())
        with blas_threads():
            return torch.from_numpy(x @ y)
    narrow = exact and b_largest <= ELEVEN_BITS and float(a.abs().amax()) <= ELEVEN_BITS
    with _no_lower_precision():
        return a @ b if narrow else a.double() @ b.double()


def gram(h: Tensor) -> tuple[Tensor, bool]:
    """Returns the upper triangle of h^T h (D, D) for whole numbers h (n, D) in float32, and whether
    float32 was enough. The lower triangle may hold anything."""
    if h.device.type != "cpu":
        squares = float(h.square().sum(dim=0, dtype=torch.float64).amax())
        narrow = squares < EXACT_FLOAT32 and float(h.abs().amax()) <= ELEVEN_BITS
        h = h if narrow else h.double()
        with _no_lower_precision():
            return h.T @ h, narrow
    from scipy.linalg import blas

    # h in C order is h^T in Fortran's order, so BLAS computes (h^T) (h^T)^T without a copy. Its
    # lower triangle in Fortran's order is the upper one in C order.
    with blas_threads():
        found = blas.ssyrk(1.0, h.numpy().T, lower=1)
        # A sum of squares that reaches 2^24 stays there, however it is rounded. If none has, all
        # were exact, and they bound every other entry.
        exact = bool(found.diagonal().max() < EXACT_FLOAT32)
        if not exact:
            found = blas.dsyrk(1.0, h.double().numpy().T, lower=1)
    return torch.from_numpy(found.T), exact


def add_upper(total: Tensor, more: Tensor, sign: int) -> None:
    """Adds `sign` times the upper triangle of `more` (D, D) to that of `total`, in float64. Rows
    come a few at a time, so that their float64 copy stays in the processor's cache: a fifth of the
    time of the whole matrices."""
    rows = ROWS if total.device.type == "cpu" else len(total)
    for row in range(0, len(total), rows):
        part = slice(row, row + rows), slice(row, None)
        total[part].add_(more[part].double(), alpha=sign)


def class_sums(h: Tensor, rows: Tensor, classes: int) -> Tensor:
    """Returns the sum of the whole numbers h (n, D) of each class, (classes, D) in float64. `rows`
    (n) is the class of each sample."""
    least, largest = torch.aminmax(h)
    narrow = len(h) * max(-float(least), float(largest)) < EXACT_FLOAT32
    values = h if narrow else h.double()
    # no sum passes what its type holds, so the order of a parallel sum does not matter
    sums = torch.zeros(classes, h.shape[1], dtype=values.dtype, device=h.device)
    return sums.index_add_(0, rows, values).double()


@contextmanager
def _no_lower_precision() -> Iterator[None]:
    """Keeps products of float32 on a GPU at TF32 or better in the body."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def blas_threads() -> Iterator[None]:
    """Lets NumPy's and SciPy's BLAS use as many threads as torch in the body."""
    with _blas_libraries().limit(limits=torch.get_num_threads(), user_api="blas"):
        yield


@cache
def _blas_libraries() -> ThreadpoolController:
    import scipy.linalg.blas  # noqa: F401 - so that its library is loaded and found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
