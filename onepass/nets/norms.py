"""Normalisation by batches: statistics that stay as they are, and batches of one."""

from __future__ import annotations

from torch import nn

from onepass.base.errors import InputError

Norms = nn.modules.batchnorm._NormBase  # whatever keeps a running mean and variance


def normalises(net: nn.Module) -> bool:
    """Whether a layer trains that normalises by batches."""
    return any(isinstance(part, Norms) and part.training for part in net.modules())


def settle(net: nn.Module, frozen: bool = False) -> None:
    """Puts normalisation layers whose parameters do not train into evaluation mode, for good: they
    normalise by the statistics that they came with, and leave these alone. One without parameters
    goes with the part that it is in."""
    parameters = list(net.parameters())
    if parameters:
        frozen = not any(one.requires_grad for one in parameters)
    if frozen and isinstance(net, Norms):
        net.eval()
    for part in net.children():
        settle(part, frozen)


def tell_of_lone_sample(problem: ValueError) -> None:
    """Says what to do about BatchNorm and one single sample, if that is what torch's error is of:
    raises an InputError."""
    if str(problem).startswith("Expected more than 1 value per channel"):
        raise InputError(
            "BatchNorm cannot train on one sample alone: give batches of two or more (of a stream "
            "by --batch; its last batch counts too), or a net with another normalisation"
        ) from problem
