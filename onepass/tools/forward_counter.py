"""What goes through a network: every pass, with its size and its kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


class ForwardPass(NamedTuple):
    """So many images at once through a network that trains or evaluates, with or without a
    gradient, in fp32 or in bfloat16."""

    images: int
    graded: bool
    training: bool
    in_fp32: bool


@contextmanager
def record_forwards(kind: type[nn.Module]) -> Iterator[list[ForwardPass]]:
    """The passes through all networks of a kind meanwhile, in their order."""
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
    """How many samples gave these features; under vmap those of all its copies."""
    whole = features
    while torch._C._functorch.is_functorch_wrapped_tensor(whole):
        whole = torch._C._functorch.get_unwrapped(whole)
    return whole.numel() // features.shape[-1]
