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
    """A window per image in units of half the image: its size, and its centre's offset."""

    width: Tensor
    height: Tensor
    right: Tensor
    down: Tensor


def draw_crops(count: int, source: torch.Generator) -> Crop:
    """Area uniform in 0.6 … 1, aspect ratio log-uniform in 3/4 … 4/3, position uniform.

    A window may reach past the image by up to 15 % on one side; what lies there is the image's
    reflection.
    """
    u = torch.rand(count, 4, generator=source, device=source.device).unbind(1)
    area = AREA[0] + (AREA[1] - AREA[0]) * u[0]
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    aspect = torch.exp(low + (high - low) * u[1])
    width, height = torch.sqrt(area * aspect), torch.sqrt(area / aspect)
    return Crop(width, height, (2 * u[2] - 1) * (1 - width), (2 * u[3] - 1) * (1 - height))


def crop(images: Tensor, window: Crop) -> Tensor:
    """Each image's window, enlarged to the image's size (bilinear)."""
    zero = torch.zeros_like(window.width)
    rows = [window.width, zero, window.right, zero, window.height, window.down]
    theta = torch.stack(rows, dim=1).view(-1, 2, 3).to(images.dtype)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
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
    red, green, blue = images.unbind(1)
    luma = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return torch.where(chosen.view(-1, 1, 1, 1), luma.unsqueeze(1), images)


def crop_grey(images: Tensor, source: torch.Generator) -> Tensor:
    """The paper's augmentation, with the parameter values of its released code."""
    cropped = crop(images, draw_crops(len(images), source))
    return grey(cropped, draw_greys(len(images), source))
