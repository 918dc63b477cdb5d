"""Functions of all readers: they open files, take fingerprints of sources and decode images."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from onepass.base import devices
from onepass.base.errors import DataError, OnepassError
from onepass.base.text import error_in_one_line

Array = np.ndarray[Any, Any]
Report = Callable[[int], None]  # is called with the number of images done since the last call
BLOCK = 256  # images that a thread decodes between two reports
MOST_BYTES = 2**30  # of a file that is read at once; the largest of CIFAR has 155 million
MOST_PIXELS = 89_478_485  # of an image: a quarter of a gigabyte, where Pillow begins to warn
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile cannot unpack the others in pieces
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's, of more than 8 bits
MOST_NESTED = 3  # folders below a dataset's own: train, <class>, images
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Split(NamedTuple):
    """The training or test images of a source that is not decoded yet: the shape of an image
    (channels, height, width), the labels (n), and `fill`, which writes the pixels into an array
    (n, channels, height, width) and reports images as they are done."""

    shape: tuple[int, int, int]
    labels: Array
    fill: Callable[[Array, Report], None]


class Undecoded(NamedTuple):
    """A dataset on disk whose labels are known but whose pixels are not decoded yet."""

    class_names: tuple[str, ...]
    train: Split
    test: Split


@contextmanager
def name_unreadable(path: str | Path) -> Iterator[None]:
    """Turns an OSError of the body into a DataError that names the file."""
    try:
        yield
    except OnepassError:
        raise
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise DataError(f"there is no {problem.filename or path}") from None
    except OSError as problem:
        why = problem.strerror or problem
        raise DataError(f"{problem.filename or path} cannot be read: {why}") from None


def regular_file_size(path: str | Path) -> int:
    """Returns the size of a regular file in bytes. Raises a DataError for anything else, because
    opening a pipe would wait and opening a device may have any effect."""
    with name_unreadable(path):
        found = os.stat(path)  # noqa: PTH116
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise DataError(f"{path} is {KINDS.get(kind, 'something else')}, not a regular file")
    return found.st_size


def read_bytes(path: str | Path) -> bytes:
    """Returns the content of a regular file; raises a DataError if it is larger than 1 GiB."""
    if (size := regular_file_size(path)) > MOST_BYTES:
        raise DataError(f"{path} has {size} bytes; files may have at most {MOST_BYTES}")
    with name_unreadable(path), open(path, "rb") as file:  # noqa: PTH123
        return file.read()


def decode_class_name(given: str | bytes, path: str | Path) -> str:
    """Returns a class name as text; raises a DataError if it is not valid UTF-8."""
    try:
        return given.decode() if isinstance(given, bytes) else given.encode().decode()
    except UnicodeError:
        raise DataError(f"{path}: the class name {given[:100]!r} is not UTF-8; rename it") from None


def fingerprint(path: Path) -> str:
    """Returns a checksum of the names, sizes and times of the visible files below a path, in up to
    three levels of folders.

    It changes when a file is added, removed, renamed, resized or written. Contents are not read.
    """
    with name_unreadable(path):
        rows = "".join(sorted(_fingerprint_rows(path, "", MOST_NESTED)))
    return hashlib.sha256(os.fsencode(rows)).hexdigest()


def _fingerprint_rows(path: Path | str, below: str, deepest: int) -> list[str]:
    """Returns a row for every visible file, with folders opened down to `deepest` levels: a folder
    may hold a link to itself. Paths are strings, because Path objects are slow for 100,000
    files."""
    if os.path.isfile(path):  # noqa: PTH113
        return [_fingerprint_row(below, os.stat(path))]  # noqa: PTH116
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{below}/{entry.name}"
            if not entry.is_dir():
                found.append(_fingerprint_row(name, entry.stat(follow_symlinks=entry.is_file())))
            elif deepest:
                found += _fingerprint_rows(entry.path, name, deepest - 1)
    return found


def _fingerprint_row(name: str, found: os.stat_result) -> str:
    return f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n"  # no file name holds a NUL


def split_of_files(
    names: Sequence[str],
    labels: Sequence[int],
    shape: tuple[int, int, int],
    read: Callable[[str], bytes],
    *,
    resize: bool = False,
) -> Split:
    """Returns a split whose images are encoded files; `read` returns a file's content by its name.
    With `resize`, images are scaled to the shape; without it, another size is an error.

    Images that are resized are large, and all cores decode them. Small ones spend most of their
    time in Python under its global lock, so more than four threads make them slower.
    """

    def fill(array: Array, report: Report) -> None:
        def block(first: int) -> int:
            for index in range(first, min(first + BLOCK, len(names))):
                array[index] = decode_image(read(names[index]), names[index], shape, resize=resize)
            return min(BLOCK, len(names) - first)

        cores = devices.usable_cores()
        with ThreadPoolExecutor(cores if resize else min(cores, 4)) as pool:
            try:
                for done in pool.map(block, range(0, len(names), BLOCK)):
                    report(done)
            except BaseException:  # an interrupt must not wait for the remaining images
                pool.shutdown(cancel_futures=True)
                raise

    return Split(shape, np.asarray(labels, dtype=np.int64), fill)


def split_of_arrays(images: Array, labels: Array) -> Split:
    """Returns a split of images (n, channels, height, width) that are in RAM already."""

    def fill(array: Array, report: Report) -> None:
        array[:] = images
        report(len(images))

    channels, height, width = images.shape[1:]
    return Split((channels, height, width), labels.astype(np.int64), fill)


def decode_image(
    content: bytes, name: str, shape: tuple[int, int, int], *, resize: bool = False
) -> Array:
    """Returns an encoded image as uint8 (channels, height, width), upright. Raises a DataError that
    names the image if it cannot be decoded, or has another size and `resize` is False."""
    channels, height, width = shape
    with open_image(io.BytesIO(content), name) as picture:
        turn_upright(picture)
        converted = to_eight_bit(picture).convert("L" if channels == 1 else "RGB")
    if converted.size != (width, height):
        if not resize:
            found = f"{converted.size[0]}x{converted.size[1]}"
            raise DataError(
                f"{name} is {found}, but images must be {width}x{height}; "
                "--image-size scales images of your own"
            )
        converted = converted.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(converted).reshape(height, width, channels).transpose(2, 0, 1)


@contextmanager
def open_image(source: str | io.BytesIO, name: str) -> Iterator[Image.Image]:
    """Opens an image for the body and reads its header. Raises a DataError that names the image if
    it is damaged, has an unknown format or too many pixels.

    Only common formats are tried, because Pillow starts another program for PostScript. PPM is
    tried only for files with its suffix.
    """
    formats = (*FORMATS, "PPM") if name.lower().endswith((".ppm", ".pgm")) else FORMATS
    try:
        with Image.open(source, formats=formats) as picture:
            width, height = picture.size
            if width * height > MOST_PIXELS:
                raise DataError(
                    f"{name} is {width}x{height}, but an image may have at most {MOST_PIXELS} "
                    "pixels; scale it down"
                )
            yield picture
    except DataError:
        raise
    except Exception as problem:  # a damaged image may raise anything
        if isinstance(problem, OSError) and problem.strerror:
            raise DataError(f"{name} cannot be read: {problem.strerror}") from None
        unknown = isinstance(problem, UnidentifiedImageError)
        why = "its format is unknown" if unknown else error_in_one_line(problem)
        raise DataError(f"{name} is damaged, or not an image: {why}") from None


def turn_upright(picture: Image.Image) -> None:
    """Turns a picture upright in place: its EXIF data record how the camera was held. Raises an
    exception of Pillow for damaged pixels; ignores damaged EXIF data."""
    picture.load()
    with suppress(Exception):
        ImageOps.exif_transpose(picture, in_place=True)


def to_eight_bit(picture: Image.Image) -> Image.Image:
    """Returns a picture of 16 bits per pixel scaled to 8, because Pillow itself would clip the
    values; others are unchanged. Raises a ValueError for values of more than 16 bits."""
    if picture.mode not in DEEP_MODES:
        return picture
    pixels = np.asarray(picture)
    if picture.mode == "F" or pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError("its pixels have more than 16 bits")
    return Image.fromarray((pixels / 257).round().astype(np.uint8))  # 65535 / 257 = 255
