"""Sampling without replacement, with static shapes and without host synchronisation.

The cost depends on the number of samples drawn, not on the size of the memory. A random permutation
of the memory would cost more for a larger memory. A draw whose length depends on the stored samples
would make the host wait for the device.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass.base.devices import is_on_host, widest_float

Array = np.ndarray[Any, Any]
OVERSAMPLING = 4  # integers drawn with replacement for each one wanted
FEW = 4  # populations; more are drawn in parallel on the device
NEVER = 2.0  # above every uniform number


def draw_distinct(count: int, population: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws `count` distinct integers from 0 to `population` - 1, each subset with equal
    probability. `population` is a tensor on the generator's device. If it has several numbers, each
    gets its own draw, along a last dimension.

    Returns the integers in random order and a mask that is true where an integer is genuine, not a
    repetition. If the population is smaller than `count`, each of its integers comes once, and then
    repetitions follow. An empty population gives zeros, none of them genuine.

    Populations up to 4 `count` are listed and shuffled. From larger ones, 4 `count` integers are
    drawn with replacement, and a random `count` of the distinct ones is kept. The probability that
    fewer than `count` are distinct is below 1e-30 for counts from 32 up; missing ones count as
    repetitions.
    """
    pool, device = OVERSAMPLING * count, population.device
    shape = (2, *population.shape, pool)
    # `uniform` draws with replacement; the distinct integers with the smallest `key` are kept
    both = torch.rand(shape, generator=rng, device=device, dtype=widest_float(device))
    if is_on_host(population) and population.numel() <= FEW:
        return _draw_distinct_on_host(count, population, *both.numpy())
    uniform, key = both
    many = population.unsqueeze(-1)
    listed = torch.arange(pool, device=device, dtype=torch.int32)
    cycled = listed % many.clamp(min=1)  # all integers below `many`, repeatedly
    sorted_draws = (uniform * many).int().sort().values
    drawn = torch.where(many <= pool, cycled, sorted_draws)
    fresh = listed < many  # true where an integer is listed first
    behind = fresh[..., 1:]  # a sorted draw that equals its neighbour is a repetition
    behind &= drawn[..., 1:] != drawn[..., :-1]
    # keys of repetitions are above all others and increase, so that they sort last in a fixed order
    key, chosen = torch.where(fresh, key, NEVER + listed).topk(count, largest=False, sorted=True)
    return drawn.gather(-1, chosen).to(population.dtype), key < NEVER


def _draw_distinct_on_host(
    count: int, population: Tensor, uniform: Array, key: Array
) -> tuple[Tensor, Tensor]:
    """Returns the same integers and mask as `draw_distinct`, bit for bit, computed with NumPy on
    the CPU, one population after another. For few populations this takes half the time."""
    if not population.ndim:
        drawn, genuine = _draw_once_on_host(count, int(population), uniform, key)
        return torch.from_numpy(drawn), torch.from_numpy(genuine)
    drawn = np.empty((*population.shape, count), np.int64)
    genuine = np.empty(drawn.shape, bool)
    for index, many in np.ndenumerate(population.numpy()):
        drawn[index], genuine[index] = _draw_once_on_host(count, many, uniform[index], key[index])
    return torch.from_numpy(drawn), torch.from_numpy(genuine)


def _draw_once_on_host(count: int, many: int, uniform: Array, key: Array) -> tuple[Array, Array]:
    """Returns the integers and the mask of one population, of size `many`. Overwrites `key`."""
    pool = len(key)
    late = _late_keys(pool)
    if many <= pool:
        drawn = np.arange(pool) % max(many, 1)
        key[many:] = late[many:]
    else:
        drawn = (uniform * many).astype(np.int64)
        drawn.sort()
        np.putmask(key[1:], drawn[1:] == drawn[:-1], late[1:])
    chosen = key.argsort()[:count]
    return drawn.take(chosen), key.take(chosen) < NEVER


@lru_cache
def _late_keys(pool: int) -> Array:
    """Returns the keys of repetitions, which sort behind genuine integers, in their order."""
    return np.arange(NEVER, NEVER + pool)


def nth_true(counts: Tensor, ranks: Tensor) -> Tensor:
    """Returns for each rank, counted from 0, the position of the true entry of this rank in a mask.
    `counts` is the cumulative sum of the mask. A rank past the last true entry gives the length of
    the mask, which is no position.

    >>> counts = torch.tensor([0, 1, 1, 0, 1]).cumsum(0)
    >>> nth_true(counts, torch.tensor([0, 2]))
    tensor([1, 4])
    """
    # the first position where counts > rank
    return torch.searchsorted(counts, ranks.to(counts.dtype), right=True)
