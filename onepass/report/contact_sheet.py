"""Contact sheets: the images of each class in a row of one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from onepass.base.fileio import expect_suffix, write_atomically
from onepass.base.text import printable

MOST = 40  # images in a row; the others are left out
LEAST_SIDE = 32  # pixels of a thumbnail; smaller images are enlarged by whole factors
GAP = 2  # pixels between thumbnails
LETTER = 7  # pixels; no letter of Pillow's default font is wider
LONGEST_NAME = 30  # letters; longer names are cut


def draw_sheet(rows: Sequence[tuple[str, Tensor]], output: Path) -> None:
    """Writes a .png file with a row for each class: its name and the first 40 of its uint8 images
    (n, c, h, w). Raises an InputError if `output` has another suffix."""
    expect_suffix(output, "a sheet", ".png")
    shown = [(_short(printable(name)), images[:MOST]) for name, images in rows]
    height, width = shown[0][1].shape[2:]
    times = max(1, -(-LEAST_SIDE // max(height, width)))
    across, down = width * times + GAP, height * times + GAP
    margin = LETTER * max(len(name) for name, _ in shown) + 2 * GAP
    columns = max(len(images) for _, images in shown)
    sheet = Image.new("RGB", (margin + columns * across, len(shown) * down + GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (name, images) in enumerate(shown):
        top = GAP + row * down
        pen.text((GAP, top + down // 2), name, fill="black", anchor="lm")
        for column, picture in enumerate(_pictures(images)):
            scaled = picture.resize((width * times, height * times), Image.Resampling.NEAREST)
            sheet.paste(scaled, (margin + column * across, top))
    write_atomically(output, lambda file: sheet.save(file, "png"))


def to_uint8(images: Tensor) -> Tensor:
    """Returns the images as uint8. Values that all lie between 0 and 1 are multiplied by 255. If
    any value lies outside, the lowest value of all images becomes 0 and the highest 255. If all are
    equal, they become 0."""
    if images.dtype == torch.uint8 or not len(images):
        return images.to(torch.uint8)
    low, high = images.aminmax()
    if low < 0 or high > 1:
        images = (images - low) / (high - low if high > low else 1)
    return (images * 255).round().to(torch.uint8)


def _pictures(images: Tensor) -> list[Image.Image]:
    """Returns a picture of each image: in colour with three channels, else the first channel in
    grey."""
    colour = images.shape[1] == 3
    pixels = images.permute(0, 2, 3, 1) if colour else images[:, 0]
    return [Image.fromarray(np.ascontiguousarray(image)) for image in pixels.numpy()]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
