"""Random projections of whole numbers, the same on every machine.

Normal draws go through logarithms, which differ between machines, and a generator's stream may
change between versions. The entries here are cut from the output of SHAKE-256, which a standard
defines: odd numbers between -31 and 31, each as likely as the others. A sum of many such entries
times values is nearly normal, and a product with a sample on the grid is exact in float32 for
samples of up to some ten thousand values (`functional.exact`).
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

LARGEST_ENTRY = 31
ENTRY_VARIANCE = 341  # of odd numbers from -31 to 31: (32^2 - 1) / 3
TERMS = 12  # entries in a frequency
FREQUENCY_VARIANCE = TERMS * ENTRY_VARIANCE


def draw_entries(count: int, seed: int, purpose: str) -> Tensor:
    """Returns `count` random entries as int8: odd numbers between -31 and 31.

    >>> draw_entries(5, seed=0, purpose="projection")
    tensor([ 13, -17,  -1,  11,   1], dtype=torch.int8)
    """
    stream = hashlib.shake_256(f"onepass {purpose} {seed}".encode()).digest(count)
    drawn = torch.frombuffer(bytearray(stream), dtype=torch.uint8)
    return ((drawn & 31) * 2).to(torch.int8) - LARGEST_ENTRY


def draw_projection(inputs: int, width: int, seed: int) -> Tensor:
    """Returns the entries of a projection from `inputs` values to `width`, (inputs, width)."""
    return draw_entries(inputs * width, seed, "projection").view(inputs, width).float()


def draw_frequencies(inputs: int, width: int, seed: int) -> Tensor:
    """Returns nearly normal whole numbers, (inputs, width), of variance `FREQUENCY_VARIANCE`: sums
    of twelve entries."""
    drawn = draw_entries(TERMS * inputs * width, seed, "frequencies")
    frequencies: Tensor = drawn.view(TERMS, inputs, width).sum(dim=0).float()
    return frequencies


def draw_phases(width: int, turn: int, seed: int) -> Tensor:
    """Returns whole numbers (width) between 0 and `turn` - 1, which divides 65536."""
    stream = hashlib.shake_256(f"onepass phases {seed}".encode()).digest(2 * width)
    low, high = torch.frombuffer(bytearray(stream), dtype=torch.uint8).long().view(2, width)
    phases: Tensor = (low + 256 * high) % turn
    return phases


def column_norm(projection: Tensor) -> float:
    """Returns the largest norm of a column."""
    return math.sqrt(float(projection.square().sum(dim=0, dtype=torch.float64).amax()))


def projection_shift(inputs: int) -> int:
    """Returns s such that 2^s is nearest, by ratio, to the deviation of a projected sample of
    variance 1: the square root of inputs * 341.

    >>> projection_shift(1280), round((1280 * 341) ** 0.5)
    (9, 661)
    """
    return (inputs * ENTRY_VARIANCE).bit_length() // 2  # 2^(2s - 1) <= variance < 2^(2s + 1)
