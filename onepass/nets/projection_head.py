"""The projection head, whose outputs contrastive losses compare."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.nets.classifier import Classifier
from onepass.nets.initialise import build

PROJECTED = 128


def projection_head(features: int, rng: torch.Generator) -> nn.Module:
    """Returns a head of two layers, from features to 128 numbers."""

    def layers() -> nn.Module:
        hidden = nn.Linear(features, features)
        return nn.Sequential(hidden, nn.ReLU(), nn.Linear(features, PROJECTED))

    return build(layers, rng)


def project(model: Classifier, features: Tensor) -> Tensor:
    """Returns z, unit rows (n, 128), from the model's module named `projection`."""
    return F.normalize(model.on(model.get_submodule("projection"), features))
