"""Gradients of several mini-batches at once (of single samples, where a mini-batch is one)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Gradients = dict[str, Tensor]


def gradients_per_batch(
    model: nn.Module, loss: Callable[..., Tensor], x: Tensor, *targets: Tensor
) -> Gradients:
    """d loss(model(x), *targets) / d parameter for every trainable parameter, by name: one row for
    each mini-batch. The first dimension of all arguments counts mini-batches, the second samples.

    The model must be evaluating, so that samples know nothing of each other and no statistics move.
    The result takes the room of the parameters times the number of mini-batches.
    """
    trainable = {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }

    def of_one(parameters: Gradients, x: Tensor, *targets: Tensor) -> Tensor:
        return loss(functional_call(model, parameters, (x,)), *targets)

    over = (None, 0, *(0 for _ in targets))  # one set of parameters for all mini-batches
    gradients: Gradients = vmap(grad(of_one), in_dims=over)(trainable, x, *targets)
    return gradients
