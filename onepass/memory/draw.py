"""Drawing without replacement at static shapes and without host synchronisation, at a cost that
does not depend on the population (a draw from some classes also scans the labels once).

A random permutation of the memory would cost more the larger the memory is, and a draw whose
length depends on what is stored would force the device to report to the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.devices import finest

OVERSAMPLING = 4
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
    pool = OVERSAMPLING * count
    many = population.unsqueeze(-1)
    shape = (2, *population.shape, pool)
    # `uniform` draws with replacement, `key` decides by lot which of the different ones are kept
    uniform, key = torch.rand(shape, generator=rng, device=many.device, dtype=finest(many.device))
    listed = torch.arange(pool, device=many.device, dtype=torch.int32)
    cycled = listed % many.clamp(min=1)
    drawn = torch.where(many <= pool, cycled, (uniform * many).int().sort().values)
    fresh = listed < many  # the first time that an integer is listed
    # sorted draws: one that equals its neighbour is a repetition
    fresh[..., 1:] &= (many <= pool) | (drawn[..., 1:] != drawn[..., :-1])
    # repetitions come behind everything genuine, in their order
    key, chosen = torch.where(fresh, key, NEVER + listed).topk(count, largest=False, sorted=True)
    return drawn.gather(-1, chosen).long(), key < NEVER


def nth_true(counts: Tensor, ranks: Tensor) -> Tensor:
    """The positions of the ranks-th true entries of a mask, counted from 0, given how many entries
    are true up to each position.

    Ranks past the last one give the last position; the caller masks them.

    >>> counts = torch.tensor([0, 1, 1, 0, 1]).cumsum(0)
    >>> nth_true(counts, torch.tensor([0, 2]))
    tensor([1, 4])
    """
    wanted = (ranks + 1).to(counts.dtype)
    return torch.searchsorted(counts, wanted).clamp(max=counts.shape[-1] - 1)
