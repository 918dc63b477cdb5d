"""Where features are compared in contrastive losses, instead of as they are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.nets.classifier import Classifier
from onepass.nets.initialise import build

PROJECTED = 128


def projection_head(features: int, rng: torch.Generator) -> nn.Module:
    """Two layers, from features to 128 numbers."""

    def layers() -> nn.Module:
        hidden = nn.Linear(features, features)
        return nn.Sequential(hidden, nn.ReLU(), nn.Linear(features, PROJECTED))

    return build(layers, rng)


def project(model: Classifier, features: Tensor) -> Tensor:
    """z, unit rows (n, 128), by the module that a network has under the name `projection`."""
    return F.normalize(model.on(model.get_submodule("projection"), features))
