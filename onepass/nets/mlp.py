"""The perceptron with two hidden layers of the GSA paper's MNIST experiments."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from onepass.nets.registry import network


class MLP(nn.Module):
    """An MLP of two ReLU layers over flattened inputs, which returns `width` features."""

    def __init__(self, inputs: int, width: int = 400) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x.flatten(1)))  # (samples, width)
        return torch.relu(self.second(hidden))


@network("mlp", takes="images and vectors")
def mlp(shape: tuple[int, ...]) -> nn.Module:
    """Two layers of 400 units over all pixels or features."""
    return MLP(math.prod(shape))
