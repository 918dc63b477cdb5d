"""PyTorch's default initialisation, drawn from a generator of ours."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn


def build(make: Callable[[], nn.Module], rng: torch.Generator) -> nn.Module:
    """Makes a module without touching the global generator: shapes first, values afterwards."""
    with torch.device("meta"):
        net = make()
    net.to_empty(device="cpu")
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            bound = 1 / math.sqrt(fan_in)
            nn.init.uniform_(module.weight, -bound, bound, generator=rng)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -bound, bound, generator=rng)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    return net
