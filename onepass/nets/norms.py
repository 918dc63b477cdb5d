"""Normalisation by batches: statistics that stay as they are, and batches of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from onepass.base.errors import InputError

NormLayer = nn.modules.batchnorm._NormBase  # whatever keeps a running mean and variance


def has_training_norms(net: nn.Module) -> bool:
    """Whether a layer trains that normalises by batches."""
    return any(isinstance(part, NormLayer) and part.training for part in net.modules())


def freeze_untrained_norms(net: nn.Module, frozen: bool = False) -> None:
    """Puts normalisation layers whose parameters do not train into evaluation mode, for good: they
    normalise by the statistics that they came with, and leave these alone. One without parameters
    goes with the part that it is in."""
    parameters = list(net.parameters())
    if parameters:
        frozen = not any(one.requires_grad for one in parameters)
    if frozen and isinstance(net, NormLayer):
        net.eval()
    for part in net.children():
        freeze_untrained_norms(part, frozen)


@contextmanager
def explain_single_sample() -> Iterator[None]:
    """What torch says of BatchNorm and one single sample, in words that say what to do."""
    try:
        yield
    except ValueError as problem:
        if not str(problem).startswith("Expected more than 1 value per channel"):
            raise
        raise InputError(
            "BatchNorm cannot train on one sample alone: give batches of two or more (of a stream "
            "by --batch; its last batch counts too), or a net with another normalisation"
        ) from problem
