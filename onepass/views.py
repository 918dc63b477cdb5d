"""From raw samples to what the network sees: normalised, augmented, perhaps mirrored."""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.augment import crop_grey
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
        self.augment = augment and images
        self.copies = 2 if mirror and images else 1
        self.source = source
        self.mean = None if mean is None else _per_channel("mean", mean, shape, source.device)
        self.std = None if std is None else _per_channel("std", std, shape, source.device)

    def normalise(self, x: Tensor) -> Tensor:
        inputs = x.float() / 255 if x.dtype == torch.uint8 else x
        if self.mean is None or self.std is None:
            return inputs
        return (inputs - self.mean) / self.std

    def augmented(self, images: Tensor) -> Tensor:
        return crop_grey(images, self.source) if self.augment else images

    def __call__(self, x: Tensor) -> Tensor:
        """Each sample augmented, and, where they are mirrored, all of them once more."""
        plain = self.normalise(x)
        if self.copies == 1:
            return self.augmented(plain)
        return torch.cat([self.augmented(plain), self.augmented(plain).flip(3)])


def _per_channel(
    name: str, values: tuple[float, ...], shape: tuple[int, ...], device: torch.device
) -> Tensor:
    if len(values) not in (1, shape[0]):
        what = "channels" if len(shape) == 3 else "features"
        raise InputError(f"{name} has {len(values)} values, but samples have {shape[0]} {what}")
    tensor = torch.tensor(values, dtype=torch.float32, device=device)
    return tensor.view(-1, 1, 1) if len(shape) == 3 else tensor
