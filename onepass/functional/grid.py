"""The grid: samples as whole numbers, with the same bits on every machine.

Sums of whole numbers below 2^53 are exact in float64, so they do not depend on the order of their
terms. This module makes such numbers from samples. Each operation is either exact or one rounding
that IEEE 754 defines (a product, a difference, a quotient, a square root), so that no library,
thread count or device changes a bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 64  # grid steps in 1
LARGEST = 8 * STEPS  # the largest value of a standardised sample, in steps: a clip at 8
LARGEST_SCALED = 64 * STEPS  # the same for a scaled sample
SHORTEST = 32  # values in a sample that is standardised; statistics of fewer say little
LONGEST = 2**16  # values in a sample; the variance of more could pass 2^63
WHOLE_BITS = 15  # a sample is rounded to whole numbers of at most 2^15 first
CHUNK = 2**18  # values at a time, which fit into a processor's cache in float64


def standardise(x: Tensor) -> Tensor:
    """Returns each sample of x (n, d) with mean 0 and variance 1, in whole grid steps, as float32.
    Values are clipped at 8. A constant sample becomes zeros.

    >>> standardise(torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]))
    tensor([[-78.,   0.,  78.],
            [  0.,   0.,   0.]])
    """
    rows = max(1, CHUNK // x.shape[1])
    return torch.cat([_standardise(piece) for piece in torch.split(x, rows)])


def _standardise(x: Tensor) -> Tensor:
    k, d = to_whole_numbers(x), x.shape[1]  # |k| <= 2^15, so both sums are exact in any order
    total = k.sum(dim=1, keepdim=True)
    squares = (k * k).sum(dim=1, keepdim=True)
    # d^2 times the variance, < 2^62
    spread = d * squares.long() - total.long().square()
    # (k - mean) / deviation = (d k - total) / sqrt(spread); a constant sample has 0 / 1
    deviation = spread.clamp(min=1).double().sqrt()
    z = k.mul_(d).sub_(total).div_(deviation).mul_(STEPS)
    return z.clamp_(-LARGEST, LARGEST).round_().float()


def to_whole_numbers(x: Tensor) -> Tensor:
    """Returns samples (n, d) as whole numbers of at most 2^15, in float64. A sample of such numbers
    stays as it is. Any other is multiplied by its own power of two, and rounded half to even.

    >>> to_whole_numbers(torch.tensor([[1.0, -3.0], [0.75, 0.5]]))
    tensor([[ 1.0000e+00, -3.0000e+00],
            [ 2.4576e+04,  1.6384e+04]], dtype=torch.float64)
    """
    values = x.to(torch.float64, copy=True)
    if x.dtype == torch.uint8:
        return values
    top = values.abs().amax(dim=1)
    whole = (values == values.round()).all(dim=1) & (top <= 2**WHOLE_BITS)
    exponent = torch.frexp(top).exponent.long()  # 2^(exponent - 1) <= top < 2^exponent
    shift = (WHOLE_BITS - exponent).masked_fill(whole, 0)
    return values.mul_(power_of_two(shift).unsqueeze(1)).round_()


def power_of_two(exponent: Tensor) -> Tensor:
    """Returns 2^exponent in float64, for whole exponents between -1022 and 1023. `torch.pow` may
    round.

    >>> power_of_two(torch.tensor([-2, 0, 10]))
    tensor([2.5000e-01, 1.0000e+00, 1.0240e+03], dtype=torch.float64)
    """
    return ((exponent.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def scale(x: Tensor, factor: float) -> tuple[Tensor, int]:
    """Returns samples x (n, d) times `factor`, a power of two, in whole grid steps, as float32; and
    the number of values that were clipped at 64.

    >>> scale(torch.tensor([[0.5, -100.0]]), 1.0)
    (tensor([[   32., -4096.]]), 1)
    """
    steps = (x.double() * (factor * STEPS)).round_()
    clipped = int((steps.abs() > LARGEST_SCALED).sum())
    return steps.clamp_(-LARGEST_SCALED, LARGEST_SCALED).float(), clipped
