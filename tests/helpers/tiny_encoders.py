"""A small EfficientNet-lite with random weights, and photos of many kinds."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from onepass.encoders.efficientnet_lite import EfficientNetLite


def tiny_network(seed: int = 0, size: int = 32) -> EfficientNetLite:
    """Returns a narrow network whose batch normalisation has random statistics."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = EfficientNetLite(0.1, 0.4, size)
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.data.uniform_(0.5, 2.0)
                module.bias.data.normal_(0.3, 0.5)
                module.running_mean.normal_(0.0, 0.3)
                module.running_var.uniform_(0.2, 1.0)
    return network.eval().requires_grad_(False)


def random_pixels(count: int, size: int = 32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def photo(seed: int = 0, width: int = 60, height: int = 40) -> Image.Image:
    """Returns a smooth colour picture without any symmetry."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)
