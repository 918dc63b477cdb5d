"""Random crops, flips, colour jitter and greyscale on batches of images (n, channels, height,
width), with one draw per image.

An augmentation draws parameters from an explicit generator, then applies a pure function of images
and parameters. So tests can give the same parameters to another library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# bounds of a window's area, as a fraction of the image's
AREA = (0.6, 1.0)
FLIPPED_AREA = (0.3, 1.0)  # of crop-grey-flip
CONTRASTIVE_AREA = (0.2, 1.0)
ASPECT = (3 / 4, 4 / 3)  # bounds of a window's width / height, if the image's is 1
FLIP_PROBABILITY = 0.5
JITTER_PROBABILITY = 0.8
JITTER = 0.4
HUE_JITTER = 0.1
GREY_PROBABILITY = 0.2
FLIPPED_GREY_PROBABILITY = 0.25
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue


class Crop(NamedTuple):
    """A window in each image: its size, and the offset of its centre from the image's, to the right
    and down.

    Both are (n, 2), horizontal first. A size is a fraction of the image's; an offset is in units of
    half the image. A negative size mirrors the window's content.
    """

    size: Tensor
    offset: Tensor


DrawCrops = Callable[[int, torch.Generator], Crop]  # draws windows for a number of images


class WholePixelCrops:
    """Draws windows of whole pixels inside images of one size, as the released code of the GSA
    paper does.

    That code draws the area uniformly between two bounds and the aspect ratio (the image's is 1)
    log-uniformly in 3/4 … 4/3. It rounds the sides and draws again until both fit into the image.

    A pair (area, log aspect) is uniform exactly if the pair of sides is uniform, because the
    Jacobian is constant. So the probability of a window of w x h pixels is proportional to the area
    of its cell (the sides that round to w and h) inside the region of valid sides. A table of these
    areas replaces the redrawing.
    """

    def __init__(
        self, height: int, width: int, area: tuple[float, float], device: torch.device
    ) -> None:
        share = _cell_areas(width, height, area)  # (width, height)
        total = share[share > 0].cumsum(0)
        # cumulative probabilities (n) of the windows that can be drawn
        self.up_to = (total / total[-1]).float().to(device)
        self.image_size = torch.tensor([width, height], dtype=torch.float32, device=device)
        size = (share.nonzero() + 1).float().to(device)  # (n, 2)
        # the centre moves in half pixels, at most `spare` of them either way
        spare = self.image_size - size
        # size, least offset, number of positions; two columns each, (n, 6)
        self.facts = torch.cat([size, -spare, 2 * spare + 1], dim=1)
        self.facts[:, :4] /= self.image_size.repeat(2)

    def __call__(self, count: int, rng: torch.Generator) -> Crop:
        uniform = torch.rand(3, count, generator=rng, device=rng.device)
        drawn = torch.searchsorted(self.up_to, uniform[0], right=True)
        facts = self.facts.index_select(0, drawn)
        size, least_offset, positions = torch.split(facts, 2, dim=1)  # (count, 2) each
        position = (uniform[1:].T * positions).floor()
        return Crop(size, torch.addcdiv(least_offset, position, self.image_size))


def _cell_areas(width: int, height: int, area: tuple[float, float]) -> Tensor:
    """Returns a table (width, height): for each window of w x h pixels, a number proportional to
    the probability of drawing it.

    It is the area of {(x, y): area_0 < x y < area_1, 3/4 < x / y < 4/3} in the cell of sides that
    round to w and h pixels, with x = w / width and y = h / height.
    """
    strips = 64  # per cell; within a strip, x is constant and y runs from `lower` to `upper`
    x = (torch.arange(width * strips, dtype=torch.float64) + 0.5) / strips + 0.5  # in pixels
    x = x.view(width, strips, 1) / width
    edges = (torch.arange(height + 1, dtype=torch.float64) + 0.5) / height
    lower = torch.maximum(area[0] / x, x / ASPECT[1])
    upper = torch.minimum(area[1] / x, x / ASPECT[0])
    inside = torch.minimum(upper, edges[1:]) - torch.maximum(lower, edges[:-1])
    return inside.clamp(min=0).sum(dim=1)


class ReflectedCrops:
    """Draws windows with areas and aspects as in `WholePixelCrops`, but with continuous sizes and
    positions. A window may reach beyond one side of the image, by up to 15 % of that side; there
    `crop` reflects the image."""

    def __init__(self, area: tuple[float, float]) -> None:
        self.area = area

    def __call__(self, count: int, rng: torch.Generator) -> Crop:
        drawn = _draw_uniform((count,), *self.area, rng)
        stretch = _draw_uniform(
            (count,), math.log(ASPECT[0]) / 2, math.log(ASPECT[1]) / 2, rng
        ).exp()
        side = drawn.sqrt()
        size = torch.stack([side * stretch, side / stretch], dim=1)
        return Crop(size, _draw_uniform((count, 2), -1.0, 1.0, rng) * (1 - size))


def pixel_centres(height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Returns pixel centres (height, width, 2), horizontal first, in units of half the image: -1 is
    the left or upper edge, 1 the right or lower one."""
    down = (2 * torch.arange(height, device=device) + 1) / height - 1
    right = (2 * torch.arange(width, device=device) + 1) / width - 1
    return torch.stack(torch.meshgrid(right, down, indexing="xy"), dim=-1)


def crop(images: Tensor, window: Crop, centres: Tensor) -> Tensor:
    """Returns each image's window, resized to the image's size (bilinear). `centres` comes from
    `pixel_centres`; the image is reflected beyond its edges."""
    size, offset = (part.to(images.dtype)[:, None, None] for part in window)
    grid = torch.addcmul(offset, centres.to(images.dtype), size)
    return F.grid_sample(
        images, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )


def draw_flips(count: int, rng: torch.Generator) -> Tensor:
    """Returns a mask (count) of images to flip, half of them on average."""
    return _draw_bernoulli(count, FLIP_PROBABILITY, rng)


def flip(window: Crop, chosen: Tensor) -> Crop:
    """Returns the windows with the chosen ones mirrored left to right, which flips the images when
    they are cropped, at no further cost."""
    width, height = window.size.unbind(dim=1)
    return Crop(torch.stack([torch.where(chosen, -width, width), height], dim=1), window.offset)


def draw_greys(count: int, rng: torch.Generator, probability: float = GREY_PROBABILITY) -> Tensor:
    """Returns a mask (count) of images to turn grey, each with this probability."""
    return _draw_bernoulli(count, probability, rng)


def grey(images: Tensor, chosen: Tensor) -> Tensor:
    """Returns the images with the chosen ones replaced by their luma, in three equal channels.
    Images without three channels are unchanged."""
    if images.shape[1] != 3:
        return images
    red, green, blue = torch.split(images, 1, dim=1)
    luma = torch.add(LUMA[0] * red, green, alpha=LUMA[1]).add(blue, alpha=LUMA[2])
    return torch.where(chosen.view(-1, 1, 1, 1), luma, images)


def crop_grey(
    images: Tensor, rng: torch.Generator, centres: Tensor, draw_crops: DrawCrops
) -> Tensor:
    """Returns images cropped, and some of them turned grey: the augmentation of the GSA paper, with
    the probability of its released code."""
    cropped = crop(images, draw_crops(len(images), rng), centres)
    return grey(cropped, draw_greys(len(images), rng))


def crop_grey_flip(
    images: Tensor, rng: torch.Generator, centres: Tensor, draw_crops: DrawCrops
) -> Tensor:
    """Returns images cropped, some of them flipped and some turned grey: the augmentation of OCM's
    released code for CIFAR and TinyImageNet."""
    count = len(images)
    window = flip(draw_crops(count, rng), draw_flips(count, rng))
    cropped = crop(images, window, centres)
    return grey(cropped, draw_greys(count, rng, FLIPPED_GREY_PROBABILITY))


class Jitter(NamedTuple):
    """Colour changes per image: an amount added to all pixels, a factor on all pixels, a factor on
    the saturation, and a shift of the hue as a fraction of a full turn."""

    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor


def draw_jitter(count: int, rng: torch.Generator) -> Jitter:
    """Returns changes drawn uniformly: brightness in -0.4 … 0.4, contrast and saturation in
    0.6 … 1.4, hue in -0.1 … 0.1. On average one image in five stays unchanged."""
    chosen = _draw_bernoulli(count, JITTER_PROBABILITY, rng)
    brightness, contrast, saturation, hue = _draw_uniform((4, count), -1.0, 1.0, rng) * chosen
    return Jitter(
        JITTER * brightness, 1 + JITTER * contrast, 1 + JITTER * saturation, HUE_JITTER * hue
    )


def brighten(images: Tensor, amount: Tensor) -> Tensor:
    """Returns pixels plus an amount per image, clipped to [0, 1]."""
    return (images + amount.view(-1, 1, 1, 1)).clamp(0, 1)


def scale_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Returns pixels times a factor per image, clipped to [0, 1]."""
    return (images * factor.view(-1, 1, 1, 1)).clamp(0, 1)


def tint(images: Tensor, saturation: Tensor, turn: Tensor) -> Tensor:
    """Returns images with the saturation of HSV scaled (up to 1) and the hue shifted by `turn`, a
    fraction of a full turn. Images without three channels are unchanged.

    With the hue h in sixths, the spread s = value - least channel and k = h + 5, 3, 1 (modulo 6),
    red, green and blue are value - s clamp(min(k, 4 - k), 0, 1).
    """
    if images.shape[1] != 3:
        return images
    value, brightest = images.max(dim=1, keepdim=True)
    spread = value - images.amin(dim=1, keepdim=True)
    lead = images.roll(-1, dims=1) - images.roll(-2, dims=1)  # g - b, b - r, r - g
    sixths = lead.gather(1, brightest) / spread.clamp(min=torch.finfo(images.dtype).tiny)
    shift = 6 * turn.view(-1, 1) + torch.arange(5, 0, -2, device=images.device)
    k = (sixths.add(brightest, alpha=2) + shift[:, :, None, None]) % 6
    wanted = torch.minimum(spread * saturation.view(-1, 1, 1, 1), value)
    return torch.addcmul(value, wanted, torch.minimum(k, 4 - k).clamp(0, 1), value=-1)


def jitter(images: Tensor, drawn: Jitter) -> Tensor:
    """Returns images with brightness, contrast, saturation and hue changed, in this order."""
    lit = scale_contrast(brighten(images, drawn.brightness), drawn.contrast)
    return tint(lit, drawn.saturation, drawn.hue)


def contrastive_view(
    images: Tensor, rng: torch.Generator, centres: Tensor, draw_crops: DrawCrops
) -> Tensor:
    """Returns pixels in [0, 1] after crop, flip, jitter and grey: the second view of SCR.

    Brightness adds, contrast multiplies, and saturation and hue are those of HSV, as in kornia
    0.4.1, which SCR's authors use. kornia draws a new order of these four for each batch; here the
    order is fixed.
    """
    count = len(images)
    window = flip(draw_crops(count, rng), draw_flips(count, rng))
    jittered = jitter(crop(images, window, centres), draw_jitter(count, rng))
    return grey(jittered, draw_greys(count, rng))


def _draw_bernoulli(count: int, probability: float, rng: torch.Generator) -> Tensor:
    """Returns a mask (count) whose entries are true with this probability."""
    return torch.rand(count, generator=rng, device=rng.device) < probability


def _draw_uniform(shape: tuple[int, ...], low: float, high: float, rng: torch.Generator) -> Tensor:
    return torch.empty(shape, device=rng.device).uniform_(low, high, generator=rng)
