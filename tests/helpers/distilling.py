"""A stream of two tasks, and a network on which training and evaluation mode differ.

The tests of weight averages, self-distillation and repeated steps share them.
"""

import torch
from tiny_learners import BOUNDARY
from torch import nn

TASKS = [[0, 1, 0, 1], [1, 1, 0], [0, 0, 1, 1], BOUNDARY, [2, 3, 2], [3, 2, 2, 0], [2, 3, 3]]


class LinearNorm(nn.Module):
    """A layer and BatchNorm for samples of any shape; the two modes give different features."""

    def __init__(self, values=6):
        super().__init__()
        self.layer, self.norm = nn.Linear(values, 8), nn.BatchNorm1d(8)
        source = torch.Generator().manual_seed(7)
        for parameter in self.layer.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=source)

    def forward(self, x):
        return torch.relu(self.norm(self.layer(x.flatten(1))))


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
