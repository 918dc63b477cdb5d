"""Random crops and greys, one draw per sample, batched, from a generator of ours.

Each is split in two: parameters (drawn) and a pure function of images and parameters, so that
another library can be given the same parameters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

AREA = (0.6, 1.0)
ASPECT = (3 / 4, 4 / 3)
GREY_PROBABILITY = 0.2
LUMA = (0.299, 0.587, 0.114)


class Crop(NamedTuple):
    """A window per image in units of half the image, (samples, 2), horizontal first: its size, and
    its centre's offset to the right and down."""

    size: Tensor
    offset: Tensor


def draw_crops(count: int, source: torch.Generator) -> Crop:
    """Area uniform in 0.6 … 1, aspect ratio log-uniform in 3/4 … 4/3, position uniform.

    A window may reach past the image by up to 15 % on one side; what lies there is the image's
    reflection.
    """
    area = _uniform((count,), *AREA, source)
    stretch = _uniform((count,), math.log(ASPECT[0]) / 2, math.log(ASPECT[1]) / 2, source).exp()
    side = area.sqrt()
    size = torch.stack([side * stretch, side / stretch], dim=1)
    return Crop(size, _uniform((count, 2), -1.0, 1.0, source) * (1 - size))


def pixel_centres(height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """(height, width, 2) in units of half the image, horizontal first."""
    down = (2 * torch.arange(height, device=device) + 1) / height - 1
    right = (2 * torch.arange(width, device=device) + 1) / width - 1
    return torch.stack(torch.meshgrid(right, down, indexing="xy"), dim=-1)


def crop(images: Tensor, window: Crop, centres: Tensor) -> Tensor:
    """Each image's window, enlarged to the image's size (bilinear)."""
    size, offset = (part.to(images.dtype)[:, None, None] for part in window)
    grid = torch.addcmul(offset, centres.to(images.dtype), size)
    return F.grid_sample(
        images, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )


def draw_greys(count: int, source: torch.Generator) -> Tensor:
    uniform = torch.rand(count, generator=source, device=source.device)
    return uniform < GREY_PROBABILITY


def grey(images: Tensor, chosen: Tensor) -> Tensor:
    """The chosen images by their luma, in three equal channels; greyscale images stay."""
    if images.shape[1] != 3:
        return images
    red, green, blue = torch.split(images, 1, dim=1)
    luma = torch.add(LUMA[0] * red, green, alpha=LUMA[1]).add(blue, alpha=LUMA[2])
    return torch.where(chosen.view(-1, 1, 1, 1), luma, images)


def crop_grey(images: Tensor, source: torch.Generator, centres: Tensor) -> Tensor:
    """The paper's augmentation, with the parameter values of its released code."""
    cropped = crop(images, draw_crops(len(images), source), centres)
    return grey(cropped, draw_greys(len(images), source))


def _uniform(shape: tuple[int, ...], low: float, high: float, source: torch.Generator) -> Tensor:
    return torch.empty(shape, device=source.device).uniform_(low, high, generator=source)
