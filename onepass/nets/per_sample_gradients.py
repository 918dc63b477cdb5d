"""Gradients of the loss of several mini-batches in one pass. Batches of one sample give gradients
per sample."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Gradients = dict[str, Tensor]


def gradients_per_batch(
    model: nn.Module, loss: Callable[..., Tensor], x: Tensor, *targets: Tensor
) -> Gradients:
    """Returns the gradient of loss(model(x), *targets) for every trainable parameter, by name, with
    one row per mini-batch. The first dimension of x and of each target is mini-batches, the second
    samples.

    The model must be in evaluation mode, so that samples are independent and no statistics change.
    The result takes the memory of all parameters once per mini-batch.
    """
    trainable = {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }

    def batch_loss(parameters: Gradients, x: Tensor, *targets: Tensor) -> Tensor:
        return loss(functional_call(model, parameters, (x,)), *targets)

    over = (None, 0, *(0 for _ in targets))  # one set of parameters for all mini-batches
    gradients: Gradients = vmap(grad(batch_loss), in_dims=over)(trainable, x, *targets)
    return gradients
