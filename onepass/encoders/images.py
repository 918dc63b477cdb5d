"""Photos as they come, as squares of pixels.

A file is decoded and turned upright as its EXIF data say; an animation gives its first frame; 16
bits become 8; transparent places become white; grey and CMYK become RGB. The whole image, whatever
its shape, is then scaled to a square by Pillow's bicubic filter, which computes in whole numbers.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from onepass.base import devices, inputs
from onepass.base.errors import DataError, InputError
from onepass.base.text import error_in_one_line, quoted
from onepass.data.files import open_image, regular_file_size, to_eight_bit, turn_upright

Array = np.ndarray[Any, Any]
Pixels = dict[int, Array]  # uint8 (size, size, 3), or (n, size, size, 3), by size
EXPECTED = (
    "expected a list of paths, of Pillow images or of uint8 arrays (channels, height, width), or a "
    "uint8 array (n, channels, height, width) with 1 or 3 channels"
)


class Chunk(NamedTuple):
    """Prepared images: the index of each in its batch, and their pixels by size."""

    indices: list[int]
    pixels: Pixels


def as_images(batch: Any) -> Sequence[Any]:
    """Returns a batch as a sequence of paths, Pillow images and uint8 tensors (c, h, w). Raises an
    InputError for anything else."""
    if isinstance(batch, str | os.PathLike | Image.Image):
        raise InputError(f"one image must be given as a list, [image]: {EXPECTED}")
    if isinstance(batch, list | tuple):
        if not batch:
            raise InputError(f"the batch is empty: {EXPECTED}")
        return [_as_image(sample, index) for index, sample in enumerate(batch)]
    if getattr(getattr(batch, "dtype", None), "kind", "") in "OU":  # an array of paths
        return as_images(list(batch))
    images = inputs.as_samples(batch)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InputError(f"{EXPECTED}; got {images.dtype} {tuple(images.shape)}")
    return images.cpu()  # type: ignore[return-value]  # a tensor is a sequence of its images


def _as_image(sample: Any, index: int) -> str | Image.Image | Tensor:
    if isinstance(sample, Image.Image):
        return sample
    if isinstance(sample, str | Path):
        return str(sample)
    if isinstance(sample, np.ndarray) and sample.dtype == np.uint8:
        image = torch.from_numpy(sample.copy())  # torch takes no views with negative strides
    elif isinstance(sample, Tensor):
        image = sample.cpu()
    else:
        raise InputError(f"image {index} is {quoted(sample)}: {EXPECTED}")
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] not in (1, 3):
        raise InputError(f"image {index} is {image.dtype} {tuple(image.shape)}: {EXPECTED}")
    return image


def prepare(
    images: Sequence[Any],
    sizes: Sequence[int],
    chunk: int,
    damaged: list[tuple[int, DataError]] | None,
) -> Iterator[Chunk]:
    """Yields the images in chunks, scaled to each of the sizes by threads that work ahead.

    An image that cannot be decoded is appended to `damaged` and left out; without such a list, its
    error is raised.
    """
    cores = devices.usable_cores()
    with ThreadPoolExecutor(cores) as pool:
        waiting: deque[Future[Pixels | DataError]] = deque()
        indices: list[int] = []
        ready: list[Pixels] = []
        try:
            for index in range(len(images)):
                while len(waiting) < 2 * chunk and index + len(waiting) < len(images):
                    ahead = index + len(waiting)
                    waiting.append(pool.submit(_prepare_image, images[ahead], ahead, sizes))
                found = waiting.popleft().result()
                if not isinstance(found, DataError):
                    indices.append(index)
                    ready.append(found)
                elif damaged is None:
                    raise found
                else:
                    damaged.append((index, found))
                if len(ready) == chunk or (ready and index == len(images) - 1):
                    yield Chunk(
                        indices, {size: np.stack([one[size] for one in ready]) for size in sizes}
                    )
                    indices, ready = [], []
        except BaseException:  # the images ahead must not delay an error or an interrupt
            pool.shutdown(cancel_futures=True)
            raise


def _prepare_image(
    image: str | Image.Image | Tensor, index: int, sizes: Sequence[int]
) -> Pixels | DataError:
    """Returns the pixels of an image in each size, or the error that says why there are none."""
    try:
        return squares(image, f"image {index} of the batch", sizes)
    except DataError as problem:
        return problem


def squares(image: str | Image.Image | Tensor, name: str, sizes: Sequence[int]) -> Pixels:
    """Returns the pixels of an image in each size; raises a DataError that names the image if it
    cannot be decoded."""
    if isinstance(image, Tensor):
        picture = Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    elif isinstance(image, str):
        regular_file_size(image)  # opening a pipe would wait
        with open_image(image, image) as opened:
            turn_upright(opened)
            picture = _to_rgb(opened)
    else:
        try:
            picture = image.copy()  # so that the user's image stays as it is
            turn_upright(picture)
            picture = _to_rgb(picture)
        except Exception as problem:  # a damaged image may raise anything
            raise DataError(f"{name} is damaged: {error_in_one_line(problem)}") from None
    return {size: _square(picture, size) for size in sizes}


def _to_rgb(picture: Image.Image) -> Image.Image:
    """Returns a picture as RGB of 8 bits, on white where it is transparent."""
    if picture.has_transparency_data:
        clear = picture.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(white, clear).convert("RGB")
    return to_eight_bit(picture).convert("RGB")


def _square(picture: Image.Image, size: int) -> Array:
    if picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(picture)
