"""The projection head, whose outputs contrastive losses compare."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.nets.classifier import Classifier
from onepass.nets.initialise import build

PROJECTED = 128  # outputs


def projection_head(features: int, rng: torch.Generator) -> nn.Module:
    """Returns a projection head of two layers, from features to 128 outputs."""

    def layers() -> nn.Module:
        hidden = nn.Linear(features, features)
        return nn.Sequential(hidden, nn.ReLU(), nn.Linear(features, PROJECTED))

    return build(layers, rng)


def project(model: Classifier, features: Tensor) -> Tensor:
    """Returns the outputs of the model's module named `projection`, normalised to unit length,
    (n, 128)."""
    return F.normalize(model.on(model.get_submodule("projection"), features))
