"""Frozen means frozen: where no parameter trains, no statistic moves either."""

from __future__ import annotations

from torch import nn

Norms = nn.modules.batchnorm._NormBase  # whatever keeps a running mean and variance


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
