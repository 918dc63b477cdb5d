"""Reads MNIST as distributed: four idx files, compressed or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from onepass.base.errors import DataError
from onepass.data.files import MOST_BYTES, Array, Split, Undecoded, name_unreadable, split_of_arrays

PARTS = {"train": "train", "test": "t10k"}  # how the names of files begin
UNSIGNED_BYTES = 0x08


def _find_file(folder: Path, part: str, kind: str, dimensions: int) -> Path | None:
    """Returns the path of a file, or None if it is missing. Its name may have a dash or a dot
    before `idx`, and end in `.gz`."""
    stem = f"{PARTS[part]}-{kind}"
    names = [f"{stem}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def has_idx_files(folder: Path) -> bool:
    """Returns whether a folder holds MNIST's training images."""
    return _find_file(folder, "train", "images", 3) is not None


def read_idx(folder: Path) -> Undecoded:
    """Returns the training and test images; the classes are the ten digits."""
    return Undecoded(
        tuple(map(str, range(10))), _read_split(folder, "train"), _read_split(folder, "test")
    )


def _read_split(folder: Path, part: str) -> Split:
    arrays = []
    for kind, dimensions in (("images", 3), ("labels", 1)):
        path = _find_file(folder, part, kind, dimensions)
        if path is None:
            missing = f"{PARTS[part]}-{kind}-idx{dimensions}-ubyte(.gz)"
            raise DataError(f"{folder} has no {missing}")
        arrays.append(_read_array(path, dimensions))
    images, labels = arrays
    if len(images) != len(labels):
        raise DataError(f"{folder}: {len(images)} {part} images, but {len(labels)} labels")
    return split_of_arrays(images[:, None], labels)


def _read_array(path: Path, dimensions: int) -> Array:
    """Returns the array in an idx file.

    The format is a magic number (0, 0, type, dimensions), the sizes as big-endian 32-bit integers,
    then the bytes. No more is decompressed than the sizes announce. Raises a DataError for a
    damaged file.
    """
    try:
        with (
            name_unreadable(path),
            gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
        ):
            sizes = _read_sizes(file, path, dimensions)
            content = file.read(math.prod(sizes) + 1)  # one byte more shows that the file is longer
    except (EOFError, zlib.error) as problem:
        raise DataError(f"{path} cannot be decompressed: {problem}") from None
    if len(content) != math.prod(sizes):
        raise DataError(f"{path} is truncated or too long: it must hold {math.prod(sizes)} bytes")
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes)


def _read_sizes(file: IO[bytes] | gzip.GzipFile, path: Path, dimensions: int) -> list[int]:
    """Returns the sizes in the header; raises a DataError if it is not one of this format."""
    header = file.read(4 + 4 * dimensions)
    if header[:4] != bytes([0, 0, UNSIGNED_BYTES, dimensions]):
        raise DataError(f"{path} is not an idx file of {dimensions} dimensions: bad magic number")
    sizes = [int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4)]
    if len(header) < 4 + 4 * dimensions or math.prod(sizes) > MOST_BYTES:
        raise DataError(f"{path} is truncated, or has impossible sizes: {sizes}")
    return sizes
