"""What every reader of image files shares: files, fingerprints, decoding."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from onepass.errors import DataError

Array = np.ndarray[Any, Any]
Report = Callable[[int], None]
BLOCK = 256
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class Split(NamedTuple):
    """The training or test images of some files: their labels, and how to write their pixels into
    an array (n, channels, height, width), reporting how many are done."""

    shape: tuple[int, int, int]
    labels: Array
    fill: Callable[[Array, Report], None]


class Undecoded(NamedTuple):
    """Images on disk whose labels are known and whose pixels are not yet decoded."""

    class_names: tuple[str, ...]
    train: Split
    test: Split


def fingerprint(path: Path) -> str:
    """Changes when a file is added, removed, renamed, resized or written; reads no contents."""
    lines = "".join(sorted(_files(path, "")))
    return hashlib.sha256(lines.encode()).hexdigest()


def _files(path: Path | str, below: str) -> list[str]:
    """Name, size and time of writing of every file; strings, and no Path objects, since there may
    be a hundred thousand."""
    if os.path.isfile(path):  # noqa: PTH113
        return [_line(below, os.stat(path))]  # noqa: PTH116
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{below}/{entry.name}"
            if entry.is_dir():
                found += _files(entry.path, name)
            else:
                found.append(_line(name, entry.stat()))
    return found


def _line(name: str, stat: os.stat_result) -> str:
    return f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"


def decoded(
    names: Sequence[str],
    labels: Sequence[int],
    shape: tuple[int, int, int],
    read: Callable[[str], bytes],
    *,
    resize: bool = False,
) -> Split:
    """A part whose images are encoded files; all cores decode."""

    def fill(array: Array, report: Report) -> None:
        def block(first: int) -> int:
            for index in range(first, min(first + BLOCK, len(names))):
                array[index] = decode(read(names[index]), names[index], shape, resize=resize)
            return min(BLOCK, len(names) - first)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            try:
                for done in pool.map(block, range(0, len(names), BLOCK)):
                    report(done)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    return Split(shape, np.asarray(labels, dtype=np.int64), fill)


def copied(images: Array, labels: Array) -> Split:
    """A part whose pixels are in memory already."""

    def fill(array: Array, report: Report) -> None:
        array[:] = images
        report(len(images))

    channels, height, width = images.shape[1:]
    return Split((channels, height, width), labels.astype(np.int64), fill)


def decode(
    content: bytes, name: str, shape: tuple[int, int, int], *, resize: bool = False
) -> Array:
    """One image as (channels, height, width); what cannot be decoded is named."""
    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(content)) as picture:
            converted = eight_bit(picture).convert("L" if channels == 1 else "RGB")
    except UNREADABLE as problem:
        raise not_an_image(name, problem) from None
    if converted.size != (width, height):
        if not resize:
            found = f"{converted.size[0]}x{converted.size[1]}"
            raise DataError(f"{name} is {found}, but images must be {width}x{height}")
        converted = converted.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(converted).reshape(height, width, channels).transpose(2, 0, 1)


def not_an_image(name: str, problem: Exception) -> DataError:
    unknown = isinstance(problem, UnidentifiedImageError)
    return DataError(f"{name} is not a whole image: {'of no known kind' if unknown else problem}")


def eight_bit(picture: Image.Image) -> Image.Image:
    """Sixteen bits a pixel scaled to eight; pillow itself would cut them off."""
    if picture.mode not in DEEP:
        return picture
    pixels = np.asarray(picture)
    if picture.mode == "F" or pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError("its pixels have more than 16 bits")
    return Image.fromarray((pixels / 257).round().astype(np.uint8))
