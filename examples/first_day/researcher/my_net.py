"""A network of one's own: a function from the shape of a sample to a module."""

from torch import nn


def small(shape: tuple[int, ...]) -> nn.Module:
    """Two convolutions. What it gives are features (n, d); the head comes from onepass."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
    )
