"""Your own network: a function that takes the shape of a sample and returns a module."""

from torch import nn


def small(shape: tuple[int, ...]) -> nn.Module:
    """Returns two convolutions with features (n, d); onepass adds the head."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
    )
