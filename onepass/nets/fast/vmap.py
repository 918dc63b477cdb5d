"""Detects tensors inside of vmap, which `per_sample_gradients` uses."""

from __future__ import annotations

import torch
from torch import Tensor


def in_vmap(x: Tensor) -> bool:
    """Returns whether x is batched by vmap, which supports no custom kernels, no other streams and
    no channels-last."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))
