"""Synthetic images or vectors: noisy copies of one random prototype per class."""

from __future__ import annotations

import torch

from onepass.base.errors import InputError
from onepass.base.seeds import generator
from onepass.data.base import Dataset
from onepass.data.registry import dataset


@dataset("synthetic", classes=10, mirror_is_same_class=False)
def synthetic(
    *,
    classes: int = 10,
    train_per_class: int = 60,
    test_per_class: int = 20,
    shape: tuple[int, ...] = (3, 12, 12),
    noise: float = 0.25,
    seed: int = 0,
) -> Dataset:
    """Makes images for a shape of (channels, height, width), feature vectors for (features,).

    >>> synthetic(classes=4, shape=(8,)).train_x.shape
    torch.Size([240, 8])
    """
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise InputError(f"shape must be (features,) or (channels, height, width), not {shape}")
    rng = generator(seed, "synthetic data")
    prototypes = torch.rand(classes, *shape, generator=rng)

    def sample(per_class: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(classes).repeat_interleave(per_class)
        x = prototypes[y] + noise * torch.randn(len(y), *shape, generator=rng)
        return ((x.clamp(0, 1) * 255).to(torch.uint8) if len(shape) == 3 else x), y

    train_x, train_y = sample(train_per_class)
    test_x, test_y = sample(test_per_class)
    return Dataset(
        name="synthetic",
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        class_names=tuple(f"class{label}" for label in range(classes)),
        mirror_is_same_class=False,  # a mirrored prototype is just another random image
    )
