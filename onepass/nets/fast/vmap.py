"""Whether a tensor stands for several, as those do that `per_sample` gives to a network."""

from __future__ import annotations

import torch
from torch import Tensor


def in_vmap(x: Tensor) -> bool:
    """Inside of vmap: kernels of our own, other streams and channels-last are not for it."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))
