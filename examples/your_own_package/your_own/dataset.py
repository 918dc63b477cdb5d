"""Points on rings around the origin; each ring is a class."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onepass.data import Dataset, dataset

RINGS = 6


@dataset("rings", classes=RINGS, tasks=3)
def rings() -> Dataset:
    """Returns six noisy rings in the plane, with 60 training and 20 test points each."""
    rng = torch.Generator().manual_seed(0)

    def draw(each: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(RINGS).repeat_interleave(each)
        angle = 2 * math.pi * torch.rand(len(y), generator=rng)
        radius = 1 + y + 0.1 * torch.randn(len(y), generator=rng)
        return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), y

    train_x, train_y = draw(60)
    test_x, test_y = draw(20)
    names = tuple(f"ring {number + 1}" for number in range(RINGS))
    return Dataset("rings", train_x, train_y, test_x, test_y, class_names=names)
