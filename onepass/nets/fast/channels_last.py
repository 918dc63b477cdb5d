"""The channels-last layout, which convolutions on a GPU prefer: a pixel's channels lie together."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.nets.fast.vmap import in_vmap


def to_channels_last(x: Tensor) -> Tensor:
    """Returns the same values, in the channels-last layout if they are images on a GPU. Inside of
    vmap, which does not support the layout, x stays as it is."""
    if x.is_cuda and x.ndim == 4 and not in_vmap(x):
        return x.contiguous(memory_format=torch.channels_last)
    return x
