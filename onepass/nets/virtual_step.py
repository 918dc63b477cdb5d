"""Sums of gradients, and a gradient step that is looked at and not taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from onepass.nets.classifier import Classifier


def add_gradients(
    first: Sequence[Tensor], second: Sequence[Tensor], factor: Tensor | None = None
) -> list[Tensor]:
    """first + factor second, of all parameters at once."""
    scaled = list(second) if factor is None else torch._foreach_mul(list(second), factor)
    return list(torch._foreach_add(list(first), scaled))


def zero_frozen_rows(model: Classifier, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of the trainable parameters, with zeros in rows of the head that do not move."""
    # the optimiser's step is followed by Head.restore; here the same rows must not move at all
    free = {"head.weight": model.head.free.unsqueeze(1), "head.bias": model.head.free}
    return [
        gradient * free[name] if name in free else gradient
        for name, gradient in zip(_trainable(model), gradients, strict=True)
    ]


@torch.no_grad()
def parameters_after_step(
    model: Classifier, gradients: Sequence[Tensor], lr: float
) -> dict[str, Tensor]:
    """What one plain step, theta - lr g without moments or decay, would make of the trainable
    parameters, by name. The network itself is left alone."""
    trainable = _trainable(model)
    moving = zero_frozen_rows(model, gradients)
    moved = torch._foreach_add(list(trainable.values()), moving, alpha=-lr)
    return dict(zip(trainable, moved, strict=True))


@torch.no_grad()
def logits_with(model: Classifier, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Logits of a network in evaluation mode with these parameters in place of its own of those
    names, in fp32: what a small step changes would drown in the rounding of bf16."""
    logits: Tensor = functional_call(model, dict(parameters), (inputs,), {"in_fp32": True})
    return logits


def _trainable(model: Classifier) -> dict[str, nn.Parameter]:
    return {name: one for name, one in model.named_parameters() if one.requires_grad}
