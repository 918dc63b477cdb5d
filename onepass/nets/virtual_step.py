"""Sums of gradients, and virtual gradient steps, which do not change the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from onepass.nets.classifier import Classifier


def add_gradients(
    first: Sequence[Tensor], second: Sequence[Tensor], factor: Tensor | None = None
) -> list[Tensor]:
    """Returns first + factor second for each parameter, with one kernel for all. The factor is 1 by
    default."""
    scaled = list(second) if factor is None else torch._foreach_mul(list(second), factor)
    return list(torch._foreach_add(list(first), scaled))


def zero_frozen_rows(model: Classifier, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Returns the gradients with zeros in the head's rows that do not train."""
    # a real step resets these rows by Head.restore; a virtual step must not move them
    free = {"head.weight": model.head.free.unsqueeze(1), "head.bias": model.head.free}
    return [
        gradient * free[name] if name in free else gradient
        for name, gradient in zip(_trainable(model), gradients, strict=True)
    ]


@torch.no_grad()
def parameters_after_step(
    model: Classifier, gradients: Sequence[Tensor], lr: float
) -> dict[str, Tensor]:
    """Returns the trainable parameters, by name, after one plain step theta - lr g, without moments
    or weight decay. The network does not change."""
    trainable = _trainable(model)
    moving = zero_frozen_rows(model, gradients)
    moved = torch._foreach_add(list(trainable.values()), moving, alpha=-lr)
    return dict(zip(trainable, moved, strict=True))


@torch.no_grad()
def logits_with(model: Classifier, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Returns the network's logits with these parameters in place of its own. The network must be
    in evaluation mode. It computes in fp32, because bf16 would round away the effect of a small
    step."""
    logits: Tensor = functional_call(model, dict(parameters), (inputs,), {"in_fp32": True})
    return logits


def _trainable(model: Classifier) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}
