"""Where features are compared in contrastive losses, instead of as they are."""

from __future__ import annotations

import torch
from torch import nn

from onepass.nets.initialise import build

PROJECTED = 128


def projection(features: int, rng: torch.Generator) -> nn.Module:
    """Two layers, from features to 128 numbers."""

    def layers() -> nn.Module:
        hidden = nn.Linear(features, features)
        return nn.Sequential(hidden, nn.ReLU(), nn.Linear(features, PROJECTED))

    return build(layers, rng)
