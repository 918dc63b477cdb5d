"""A network of two convolutions."""

from __future__ import annotations

from torch import nn

from onepass.nets import network


@network("small-conv", takes="images")
def small_conv(shape: tuple[int, ...]) -> nn.Module:
    """Returns two convolutions and a global average, with 64 features."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
