"""A batch in which new and old classes have the shares that their numbers call for."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.memory.draw import nth_true
from onepass.memory.reservoir import Reservoir
from onepass.parts import Samples


def pool(store: Reservoir, stream: Samples, among: Tensor, drawn: int) -> Samples:
    """Samples of the classes `among`: those of the stream batch first, then up to `drawn` from the
    memory, then the same again at weight 0."""
    memory = store.draw(drawn, fallback=stream, among=among)
    x, y = torch.cat([stream.x, memory.x]), torch.cat([stream.y, memory.y])
    wanted = torch.cat([among[stream.y] & (stream.weight > 0), memory.weight > 0])
    place, available = torch.arange(len(y), device=y.device), wanted.sum()
    order = nth_true(wanted, place % available.clamp(min=1))
    weight = (place < available).to(stream.weight.dtype)
    return Samples(x.index_select(0, order), y.index_select(0, order), weight)


def mix(old: Samples, new: Samples, n_old: Tensor, n_new: Tensor, size: int) -> Samples:
    """The first `n_old` of one pool and the first `n_new` of the other in `size` places.

    Where a pool is too short, or the numbers do not fill the places, its samples are repeated at
    weight 0.
    """
    place = torch.arange(size, device=old.y.device)
    from_old = place < n_old
    rank = torch.where(from_old, place, place - n_old)
    limit = torch.where(from_old, len(old.y), len(new.y))
    pick = torch.where(from_old, 0, len(old.y)) + rank % limit
    inside = (rank < limit) & (from_old | (rank < n_new))
    x = torch.cat([old.x, new.x]).index_select(0, pick)
    y = torch.cat([old.y, new.y]).index_select(0, pick)
    weight = torch.cat([old.weight, new.weight]).index_select(0, pick) * inside
    return Samples(x, y, weight)
