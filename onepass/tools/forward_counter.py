"""Records the forward passes through a network: their batch size, mode and precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


class ForwardPass(NamedTuple):
    """A forward pass of `images` images.

    `graded` is true if gradients were enabled, `training` if the network was in training mode, and
    `in_fp32` if its features came out in fp32, not in bfloat16.
    """

    images: int
    graded: bool
    training: bool
    in_fp32: bool


@contextmanager
def record_forwards(kind: type[nn.Module]) -> Iterator[list[ForwardPass]]:
    """Yields a list that collects, in order, the passes through every network of this class.

    Networks of a subclass are left out.
    """
    found: list[ForwardPass] = []

    def see(module: nn.Module, arguments: tuple[Any, ...], features: Tensor) -> None:
        if type(module) is kind:
            graded, in_fp32 = torch.is_grad_enabled(), features.dtype == torch.float32
            found.append(ForwardPass(_count_rows(features), graded, module.training, in_fp32))

    handle = register_module_forward_hook(see)
    try:
        yield found
    finally:
        handle.remove()


def _count_rows(features: Tensor) -> int:
    """Returns the number of samples behind these features, over all copies under vmap.

    Inside vmap a tensor hides its batch dimension, so it is unwrapped first.
    """
    unwrapped = features
    while torch._C._functorch.is_functorch_wrapped_tensor(unwrapped):
        unwrapped = torch._C._functorch.get_unwrapped(unwrapped)
    return unwrapped.numel() // features.shape[-1]
