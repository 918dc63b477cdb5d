"""Drawing without replacement at static shapes and without host synchronisation, at a cost that
does not depend on the population (a draw from some classes also scans the labels once).

A random permutation of the memory would cost more the larger the memory is, and a draw whose
length depends on what is stored would force the device to report to the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

OVERSAMPLING = 4


def distinct(count: int, population: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` distinct integers below `population`, each subset equally likely.

    `population` is a 0-d tensor on the device. Where it is smaller than `count`, all its integers
    come once and are then repeated. Returns the integers and whether each one is genuine (not a
    repetition); an empty population gives zeros, none of them genuine.

    Small populations are listed and shuffled. In larger ones four times as many integers are drawn
    with replacement and a random `count` of the different ones is kept: fewer than `count`
    different ones among 4 `count` draws from more than 4 `count` integers has a probability below
    1e-30 for counts from 32 up (and the shortfall is then marked as repetition).
    """
    pool = OVERSAMPLING * count
    device = population.device
    uniform = torch.rand(2, pool, generator=source, device=device, dtype=torch.float64)
    listed = torch.arange(pool, device=device)
    drawn = torch.where(population <= pool, listed, (uniform[0] * population).long())
    drawn = drawn.sort().values
    fresh = drawn < population
    fresh[1:] &= drawn[1:] != drawn[:-1]
    chosen = uniform[1].masked_fill(~fresh, 2.0).topk(count, largest=False, sorted=True).indices
    available = fresh.sum().clamp(max=count)
    place = torch.arange(count, device=device)
    repeated = place % available.clamp(min=1)
    genuine = place < available
    return torch.where(population > 0, drawn[chosen[repeated]], 0), genuine


def nth_true(mask: Tensor, ranks: Tensor) -> Tensor:
    """The positions of the ranks-th true entries of a mask, counted from 0.

    Ranks past the last one give the length of the mask less one; the caller masks them.

    >>> nth_true(torch.tensor([False, True, True, False, True]), torch.tensor([0, 2]))
    tensor([1, 4])
    """
    counts = mask.int().cumsum(0, dtype=torch.int32)  # summing booleans directly is 10x slower
    wanted = (ranks + 1).to(torch.int32)
    return torch.searchsorted(counts, wanted).clamp(max=len(mask) - 1)
