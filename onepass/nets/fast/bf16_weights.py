"""Casts all weights of a network to bfloat16 with one kernel.

Autocast launches a kernel per weight, and another per gradient. These are some fifty launches in a
ResNet18, a twentieth of its step. One kernel for all gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from onepass.nets.fast.parallel import in_parallel
from onepass.nets.fast.vmap import in_vmap


class _CastToBF16(torch.autograd.Function):
    """Casts fp32 weights to bfloat16, and their gradients back to fp32."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(_cast(weights, torch.bfloat16))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(_cast(gradients, torch.float32))


def _cast(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    cast = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(cast, list(tensors))
    return cast


def weights_in_bf16(net: nn.Module) -> dict[str, Tensor]:
    """Returns bfloat16 copies, by name, of the weights that autocast would cast: the fp32 ones with
    two dimensions or more. Gradients flow back to the weights themselves."""
    weights = {
        name: weight
        for name, weight in net.named_parameters()
        if weight.ndim > 1 and weight.dtype == torch.float32
    }
    if not weights:
        return {}
    cast = _CastToBF16.apply(*weights.values())  # type: ignore[no-untyped-call]
    return dict(zip(weights, cast, strict=True))


def view_and_forward_in_bf16(
    net: nn.Module, x: Tensor, view: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Returns view(x) and net(view(x)). Casts all weights while the view is computed."""
    weights, inputs = in_parallel(x, lambda _: weights_in_bf16(net), view)
    return inputs, functional_call(net, weights, inputs)


def forward_in_bf16(net: nn.Module, x: Tensor) -> Tensor:
    """Returns net(x), with all weights cast by one kernel unless they are in bfloat16 already."""
    weights = {} if in_vmap(x) else weights_in_bf16(net)
    return functional_call(net, weights, x) if weights else net(x)  # type: ignore[no-any-return]
