"""Images in one folder per class."""

from __future__ import annotations

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
GREY = {"1", "L", "LA", "I", "I;16", "I;16B"}
TEST_NAMES = ("test", "val", "valid", "validation")
Files = tuple[list[str], list[int]]


def has_class_folders(folder: Path) -> bool:
    return (folder / "train").is_dir() and find_test_folder(folder) is not None


def find_test_folder(folder: Path) -> Path | None:
    return next((folder / name for name in TEST_NAMES if (folder / name).is_dir()), None)


def read_class_folders(
    folder: Path,
    *,
    image_size: int | None = None,
    test_fraction: float | None = None,
    channels: int | None = None,
) -> Undecoded:
    """`train/<class>/*` and `test/<class>/*`; or, with a test fraction, `<class>/*` alone, of which
    that part is held out per class."""
    if has_class_folders(folder):
        if test_fraction is not None:
            raise InputError(f"{folder} has a test folder: a test fraction is not needed")
        held = find_test_folder(folder)
        assert held is not None
        classes = class_names(folder / "train")
        train, test = _list_images(folder / "train", classes), _list_images(held, classes)
        if strange := sorted(set(class_names(held)) - set(classes)):
            raise DataError(f"{held} has the class {strange[0]!r}, which train does not have")
    elif test_fraction is not None:
        classes = class_names(folder)
        train, test = _hold_out(*_list_images(folder, classes), test_fraction)
    else:
        raise DataError(
            f"{folder} has no train and test folders; for one folder of classes give a test "
            "fraction (--test-fraction 0.2)"
        )
    shape = _image_shape(train[0], image_size, channels)
    resize = image_size is not None
    return Undecoded(
        tuple(classes), _image_split(train, shape, resize), _image_split(test, shape, resize)
    )


def class_names(folder: Path) -> list[str]:
    """The sorted names of the folders in a folder (as numbers, if all are), no two of them the same
    but for case."""
    found = (entry.name for entry in folder.iterdir() if entry.is_dir())
    names = sorted_classes(
        decode_class_name(name, folder) for name in found if not name.startswith(".")
    )
    if not names:
        raise DataError(f"{folder} has no folders of classes")
    spelled: dict[str, str] = {}
    for name in names:
        other = spelled.setdefault(name.strip().casefold(), name)
        if other != name:
            raise DataError(f"{folder} has two classes of one name: {other!r} and {name!r}")
    return names


def _list_images(folder: Path, classes: Sequence[str]) -> Files:
    """Every image of every class, in order; a class without any is an error."""
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
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return sorted(str(path) for path in found if not path.name.startswith("."))


def _hold_out(files: list[str], labels: list[int], fraction: float) -> tuple[Files, Files]:
    targets = np.asarray(labels)
    held = held_out_mask(torch.from_numpy(targets), fraction).numpy()
    if len(lone := np.flatnonzero(np.bincount(targets) < 2)):
        place = Path(files[labels.index(lone[0])]).parent
        raise DataError(f"{place} has one image, which cannot be split")
    splits = [([files[i] for i in np.flatnonzero(m)], targets[m].tolist()) for m in (~held, held)]
    return splits[0], splits[1]


def _image_shape(files: list[str], size: int | None, channels: int | None) -> tuple[int, int, int]:
    """That of the first image, unless a size is asked for; grey only if every image is."""
    regular_file_size(files[0])
    with open_image(files[0], files[0]) as picture:
        turn_upright(picture)
        width, height = picture.size
    depth = channels or (3 if any(_colour_mode(name) not in GREY for name in files) else 1)
    return (depth, size, size) if size is not None else (depth, height, width)


def _colour_mode(name: str) -> str:
    regular_file_size(name)
    with open_image(name, name) as picture:
        return picture.mode


def _image_split(files: Files, shape: tuple[int, int, int], resize: bool) -> Split:
    return split_of_files(*files, shape, read_bytes, resize=resize)
