"""From raw samples to what the network sees: normalised, augmented, perhaps mirrored."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.augment import crop_grey, pixel_centres
from onepass.errors import InputError


class Views:
    """`normalise` is for predicting, calling it is for training: augmentation is drawn anew at
    every call."""

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        augment: bool,
        mirror: bool,
        source: torch.Generator,
    ) -> None:
        images = len(shape) == 3
        device = source.device
        self.augment = augment and images
        self.copies = 2 if mirror and images else 1
        self.source = source
        self.centres = pixel_centres(shape[1], shape[2], device) if images else None
        self.scale = self.shift = None
        if mean is not None and std is not None:
            centre = _per_channel("mean", mean, shape, device)
            self.scale = 1 / _per_channel("std", std, shape, device)
            self.shift = -centre * self.scale

    def normalise(self, x: Tensor) -> Tensor:
        """(x - mean) / std."""
        inputs = x.float() / 255 if x.dtype == torch.uint8 else x
        if self.shift is None or self.scale is None:
            return inputs
        return torch.addcmul(self.shift, inputs, self.scale)

    def augmented(self, images: Tensor) -> Tensor:
        if self.centres is None or not self.augment:
            return images
        return crop_grey(images, self.source, self.centres)

    def __call__(self, x: Tensor) -> Tensor:
        """Each sample augmented, and, where they are mirrored, the mirror images of all behind."""
        plain = self.normalise(x)
        if self.copies == 2:
            plain = torch.cat([plain, plain.flip(3)])
        return self.augmented(plain)


def _per_channel(
    name: str, values: tuple[float, ...], shape: tuple[int, ...], device: torch.device
) -> Tensor:
    if len(values) not in (1, shape[0]):
        what = "channels" if len(shape) == 3 else "features"
        raise InputError(f"{name} has {len(values)} values, but samples have {shape[0]} {what}")
    tensor = torch.tensor(values, dtype=torch.float32, device=device)
    return tensor.view(-1, 1, 1) if len(shape) == 3 else tensor
