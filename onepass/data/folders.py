"""Reads image files in one folder per class."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from onepass.base.errors import DataError, InputError
from onepass.data.files import (
    Split,
    Undecoded,
    decode_class_name,
    open_image,
    read_bytes,
    regular_file_size,
    split_of_files,
    turn_upright,
)
from onepass.data.labels import sorted_classes
from onepass.data.npz import held_out_mask

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
GREY = {"1", "L", "LA", "I", "I;16", "I;16B"}  # Pillow's modes without colour
TEST_NAMES = ("test", "val", "valid", "validation")
Files = tuple[list[str], list[int]]


def has_class_folders(folder: Path) -> bool:
    """Returns whether a folder holds a folder `train`, and one of test images."""
    return (folder / "train").is_dir() and find_test_folder(folder) is not None


def find_test_folder(folder: Path) -> Path | None:
    """Returns the first of the folders test, val, valid and validation that exists, or None."""
    return next((folder / name for name in TEST_NAMES if (folder / name).is_dir()), None)


def read_class_folders(
    folder: Path,
    *,
    image_size: int | None = None,
    test_fraction: float | None = None,
    channels: int | None = None,
) -> Undecoded:
    """Returns the images in `train/<class>/*` and `test/<class>/*`, or, with a test fraction, those
    in `<class>/*`, of which this fraction of each class becomes the test images.

    The test folder may also be named val, valid or validation. Images are scaled to squares of
    `image_size`; without it, all must have the size of the first. Without `channels`, they get one
    channel if all of them are grey, else three.
    """
    classes, train, test = find_class_files(folder)
    if test is not None:
        if test_fraction is not None:
            raise InputError(f"{folder} has a folder of test images: leave out the test fraction")
    elif test_fraction is not None:
        train, test = _hold_out(*train, test_fraction)
    else:
        raise DataError(
            f"{folder} has no train and test folders; if it holds a folder per class, give a test "
            "fraction (--test-fraction 0.2)"
        )
    shape = _image_shape(train[0], image_size, channels)
    resize = image_size is not None
    return Undecoded(
        tuple(classes), _image_split(train, shape, resize), _image_split(test, shape, resize)
    )


def find_class_files(folder: Path) -> tuple[list[str], Files, Files | None]:
    """Returns the classes of a folder, its training images, and its test images; None for these if
    it has a folder per class, without `train` and `test`."""
    if not has_class_folders(folder):
        classes = class_names(folder)
        return classes, _list_images(folder, classes), None
    held = find_test_folder(folder)
    assert held is not None
    classes = class_names(folder / "train")
    _expect_known(held, class_names(held), classes)
    return classes, _list_images(folder / "train", classes), _list_images(held, classes)


def class_names(folder: Path) -> list[str]:
    """Returns the sorted names of the folders in a folder, in numerical order if all are numbers.
    Raises a DataError if two names differ only in case or in spaces around them."""
    found = (entry.name for entry in folder.iterdir() if entry.is_dir())
    names = sorted_classes(
        decode_class_name(name, folder) for name in found if not name.startswith(".")
    )
    if not names:
        raise DataError(f"{folder} has no class folders")
    # some file systems cannot hold two folders with these names side by side
    spelled: dict[str, str] = {}
    for name in names:
        other = spelled.setdefault(_look(name), name)
        if other != name:
            raise DataError(
                f"{folder}: the names of the classes {_both(other, name)} differ only in case, "
                "spaces or the form of accents; rename one"
            )
    return names


def _look(name: str) -> str:
    r"""Returns what names share that a reader takes for one: letters in either case, and accents
    that are part of a letter or a character of their own (Unicode's NFC and NFD).

    Accents are taken apart first, because the case of some letters with two accents depends on it.

    >>> _look("\u1fb3\u0301") == _look("\u1fb4")  # alpha, iota subscript and acute
    True
    """
    apart = unicodedata.normalize("NFD", name.strip())
    return unicodedata.normalize("NFC", apart.casefold())


def _both(name: str, other: str) -> str:
    """Returns two names, escaped where they would look the same.

    >>> _both("Cat", "CAT"), _both("\u00e9", "e\u0301")
    ("'Cat' and 'CAT'", "'\\\\xe9' and 'e\\\\u0301'")
    """
    if unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", other):
        return f"{name!a} and {other!a}"
    return f"{name!r} and {other!r}"


def _expect_known(folder: Path, names: Sequence[str], classes: Sequence[str]) -> None:
    """Raises a DataError if a test folder has a class that the training folder lacks."""
    known = {_look(name): name for name in classes}
    for name in sorted(set(names) - set(classes)):
        if other := known.get(_look(name)):
            raise DataError(f"{folder} spells a class otherwise than train: {_both(other, name)}")
        raise DataError(f"{folder} has the class {name!r}, which train does not have")


def _list_images(folder: Path, classes: Sequence[str]) -> Files:
    """Returns the image files of all classes in order, and their labels; raises a DataError for a
    class without images."""
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = images_in(folder / name)
        if not found:
            raise DataError(f"{folder} has no images of the class {name!r}")
        files += found
        labels += [label] * len(found)
    return files, labels


def images_in(folder: Path) -> list[str]:
    """Returns the sorted paths of the visible image files in a folder; none if it is missing."""
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return sorted(str(path) for path in found if not path.name.startswith("."))


def _hold_out(files: list[str], labels: list[int], fraction: float) -> tuple[Files, Files]:
    """Returns the training files and the test files, which are this fraction of each class. Raises
    a DataError for a class with one image."""
    targets = np.asarray(labels)
    held = held_out_mask(torch.from_numpy(targets), fraction).numpy()
    if len(lone := np.flatnonzero(np.bincount(targets) < 2)):
        class_folder = Path(files[labels.index(lone[0])]).parent
        raise DataError(f"{class_folder} has one image; a class needs two, one of them to test on")
    splits = [([files[i] for i in np.flatnonzero(m)], targets[m].tolist()) for m in (~held, held)]
    return splits[0], splits[1]


def _image_shape(files: list[str], size: int | None, channels: int | None) -> tuple[int, int, int]:
    """Returns (channels, height, width). Without a size, it is that of the first image. Without
    `channels`, there is one channel if every image is grey, else three."""
    regular_file_size(files[0])
    with open_image(files[0], files[0]) as picture:
        turn_upright(picture)
        width, height = picture.size
    # opens the header of every image if the number of channels is not given
    depth = channels or (3 if any(_colour_mode(name) not in GREY for name in files) else 1)
    return (depth, size, size) if size is not None else (depth, height, width)


def _colour_mode(name: str) -> str:
    """Returns an image's mode as Pillow calls it, such as "L" or "RGB"."""
    regular_file_size(name)
    with open_image(name, name) as picture:
        return picture.mode


def _image_split(files: Files, shape: tuple[int, int, int], resize: bool) -> Split:
    return split_of_files(*files, shape, read_bytes, resize=resize)
