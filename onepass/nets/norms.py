"""BatchNorm layers: frozen running statistics, and batches of one sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from onepass.base.errors import InputError

NormLayer = nn.modules.batchnorm._NormBase  # layers with a running mean and variance


def has_training_norms(net: nn.Module) -> bool:
    """Returns whether a BatchNorm layer is in training mode."""
    return any(isinstance(part, NormLayer) and part.training for part in net.modules())


def freeze_untrained_norms(net: nn.Module, frozen: bool = False) -> None:
    """Puts BatchNorm layers with frozen parameters into evaluation mode for good. They keep their
    running statistics and normalise with them. A layer without parameters follows the module that
    contains it."""
    parameters = list(net.parameters())
    if parameters:
        frozen = not any(parameter.requires_grad for parameter in parameters)
    if frozen and isinstance(net, NormLayer):
        net.eval()
    for part in net.children():
        freeze_untrained_norms(part, frozen)


@contextmanager
def explain_single_sample() -> Iterator[None]:
    """Replaces torch's error about BatchNorm and a single sample by one that says what to do."""
    try:
        yield
    except ValueError as problem:
        if not str(problem).startswith("Expected more than 1 value per channel"):
            raise
        raise InputError(
            "BatchNorm cannot train on one sample alone: use batches of two or more (--batch; the "
            "last batch of a stream counts too), or a net with another normalisation"
        ) from problem
