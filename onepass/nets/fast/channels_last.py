"""Images as a GPU's convolutions want them in memory: the channels of a pixel side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.nets.fast.vmap import in_vmap


def to_channels_last(x: Tensor) -> Tensor:
    """The same values; images on a GPU in channels-last, which vmap does not know."""
    if x.is_cuda and x.ndim == 4 and not in_vmap(x):
        return x.contiguous(memory_format=torch.channels_last)
    return x
