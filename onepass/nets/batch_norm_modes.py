"""BatchNorm layers: freezes those that do not train, and explains the error for a batch of one
sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from onepass.base.errors import InputError

NormLayer = nn.modules.batchnorm._NormBase  # all layers with a running mean and variance


def has_training_norms(net: nn.Module) -> bool:
    """Returns whether a BatchNorm layer is in training mode."""
    return any(isinstance(part, NormLayer) and part.training for part in net.modules())


def freeze_untrained_norms(net: nn.Module, frozen: bool = False) -> None:
    """Puts BatchNorm layers whose parameters are all frozen into evaluation mode. They then keep
    their running statistics and normalise with them. A layer without parameters counts as frozen if
    the module that contains it is, or `frozen` for the network itself."""
    parameters = list(net.parameters())
    if parameters:
        frozen = not any(parameter.requires_grad for parameter in parameters)
    if frozen and isinstance(net, NormLayer):
        net.eval()
    for part in net.children():
        freeze_untrained_norms(part, frozen)


@contextmanager
def explain_single_sample() -> Iterator[None]:
    """Replaces torch's error for BatchNorm on one sample by an InputError that says what to do."""
    try:
        yield
    except ValueError as problem:
        if not str(problem).startswith("Expected more than 1 value per channel"):
            raise
        raise InputError(
            "BatchNorm cannot train on one sample alone: use batches of two or more (--batch; the "
            "last batch of a stream counts too), or a net with another normalisation"
        ) from problem
