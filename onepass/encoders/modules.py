"""Modules of other people as encoders: `package.module:factory`, and timm's models.

A module takes float32 images (n, 3, size, size) with pixels from 0 to 1, and returns vectors (n, d)
as float32. Its preprocessing is part of it. It is frozen, batch normalisation too. On a CPU each
image is a batch of its own; a GPU gets batches of one shape, the last one padded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onepass.base import plugins
from onepass.base.checksum import sha256
from onepass.base.errors import InputError
from onepass.encoders.engines import PADDED_BATCH, in_batches
from onepass.encoders.names import Part
from onepass.encoders.registry import Network, Takes, encoder

Array = np.ndarray[Any, Any]
USUAL_SIZE = 224


class Module:
    """Any frozen module of images, on a device."""

    takes: Takes = "images"
    exact = False
    engine = "torch"

    def __init__(self, name: str, module: nn.Module, size: int, device: torch.device) -> None:
        self._name, self._device, self.size = name, device, size
        self._module = module.to(device).eval().requires_grad_(False)
        self._batch = 1 if device.type == "cpu" else PADDED_BATCH
        self.facts: dict[str, object] = {
            "name": name,
            "weights": sha256(dict(module.state_dict())),
            "size": size,
            "pixels": "RGB, bicubic to a square, x / 255",
        }
        self.widths = [self._run(np.zeros((1, size, size, 3), np.uint8)).shape[1]]

    def encode(self, samples: Array | list[str]) -> Tensor:
        assert isinstance(samples, np.ndarray)
        return torch.from_numpy(in_batches(self._run, samples, self._batch))

    def _run(self, pixels: Array) -> Array:
        x = torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2).float().div(255)
        with torch.no_grad():
            found = self._module(x)
        if not isinstance(found, Tensor) or found.shape[:1] != x.shape[:1] or found.ndim != 2:
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"the encoder {self._name} must return a vector for each image, a tensor "
                f"({len(x)}, features), not {what}"
            )
        vectors: Array = found.float().cpu().numpy()
        return vectors


def user_network(part: Part, device: torch.device) -> Network:
    """Returns the module that a factory of the user's makes, `package.module:factory`."""
    factory = plugins.import_reference(part.base)
    module = factory() if callable(factory) else factory
    if not isinstance(module, nn.Module):
        raise InputError(f"{part.base} must return a torch module, not {type(module).__name__}")
    return Module(part.base, module, part.size or USUAL_SIZE, device)


class _Normalised(nn.Module):
    """A module whose inputs are normalised per channel first."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mean", torch.tensor(mean).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.module((x - self.mean) / self.std)
        return found


@encoder(
    "timm",
    takes="images",
    variants={"*": ("a pretrained model of timm, which downloads it; untried here", 0, "timm")},
)
def timm_model(part: Part, device: torch.device) -> Network:
    """Any model of timm, which must be installed; untried here, because it needs torchvision."""
    try:
        import timm
    except ImportError as problem:
        raise InputError(
            f"{part.base} needs the package timm, which cannot be imported here: {problem}"
        ) from None
    module = timm.create_model(part.variant, pretrained=True, num_classes=0)
    known = timm.data.resolve_model_data_config(module)
    normalised = _Normalised(module, list(known["mean"]), list(known["std"]))
    return Module(part.base, normalised, part.size or int(known["input_size"][1]), device)
