"""Drawing without replacement at static shapes and without host synchronisation, at a cost that
does not depend on the population (a draw from some classes also scans the labels once).

A random permutation of the memory would cost more the larger the memory is, and a draw whose
length depends on what is stored would force the device to report to the host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass.base.devices import at_hand, finest

Array = np.ndarray[Any, Any]
OVERSAMPLING = 4
FEW = 4  # populations; more are worked out side by side
NEVER = 2.0  # above every uniform number


def distinct(count: int, population: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` distinct integers below `population`, each subset equally likely; for several
    populations one draw each, along a last dimension.

    `population` is on the device. Where it is smaller than `count`, all its integers come once and
    are then repeated. Returns the integers and whether each one is genuine (not a repetition); an
    empty population gives zeros, none of them genuine.

    Small populations are listed and shuffled. In larger ones four times as many integers are drawn
    with replacement and a random `count` of the different ones is kept: fewer than `count`
    different ones among 4 `count` draws from more than 4 `count` integers has a probability below
    1e-30 for counts from 32 up (and the shortfall is then marked as repetition).
    """
    pool, where = OVERSAMPLING * count, population.device
    shape = (2, *population.shape, pool)
    # `uniform` draws with replacement, `key` decides by lot which of the different ones are kept
    both = torch.rand(shape, generator=rng, device=where, dtype=finest(where))
    if at_hand(population) and population.numel() <= FEW:
        return _looking(count, population, *both.numpy())
    uniform, key = both
    many = population.unsqueeze(-1)
    listed = torch.arange(pool, device=where, dtype=torch.int32)
    cycled = listed % many.clamp(min=1)  # all integers below `many`, again and again
    sorted_draws = (uniform * many).int().sort().values
    drawn = torch.where(many <= pool, cycled, sorted_draws)
    fresh = listed < many  # the first time that an integer is listed
    behind = fresh[..., 1:]  # among sorted draws, one that equals its neighbour is a repetition
    behind &= drawn[..., 1:] != drawn[..., :-1]
    # repetitions come behind everything genuine, in their order
    key, chosen = torch.where(fresh, key, NEVER + listed).topk(count, largest=False, sorted=True)
    return drawn.gather(-1, chosen).to(population.dtype), key < NEVER


def _looking(count: int, population: Tensor, uniform: Array, key: Array) -> tuple[Tensor, Tensor]:
    """Returns the same to the bit where numbers can be looked at, by NumPy, one population after
    another: half as long for so few."""
    if not population.ndim:
        drawn, genuine = _drawn(count, int(population), uniform, key)
        return torch.from_numpy(drawn), torch.from_numpy(genuine)
    drawn = np.empty((*population.shape, count), np.int64)
    genuine = np.empty(drawn.shape, bool)
    for place, many in np.ndenumerate(population.numpy()):
        drawn[place], genuine[place] = _drawn(count, many, uniform[place], key[place])
    return torch.from_numpy(drawn), torch.from_numpy(genuine)


def _drawn(count: int, many: int, uniform: Array, key: Array) -> tuple[Array, Array]:
    """Returns one draw; `key` is overwritten."""
    pool = len(key)
    late = _late(pool)
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
def _late(pool: int) -> Array:
    """Returns keys of repetitions, in their order, behind everything genuine."""
    return np.arange(NEVER, NEVER + pool)


def nth_true(counts: Tensor, ranks: Tensor) -> Tensor:
    """The positions of the ranks-th true entries of a mask, counted from 0, given how many entries
    are true up to each position.

    Ranks past the last one give the number of positions; the caller masks them.

    >>> counts = torch.tensor([0, 1, 1, 0, 1]).cumsum(0)
    >>> nth_true(counts, torch.tensor([0, 2]))
    tensor([1, 4])
    """
    return torch.searchsorted(counts, ranks.to(counts.dtype), right=True)  # where counts > rank
