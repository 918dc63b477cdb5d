"""Images in one folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from onepass.base.errors import DataError, InputError
from onepass.data.arrays import held_out
from onepass.data.files import (
    Split,
    Undecoded,
    class_name,
    contents,
    decoded,
    opened,
    size_of_file,
    turn_upright,
)
from onepass.data.labels import in_order

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
GREY = {"1", "L", "LA", "I", "I;16", "I;16B"}
TEST_NAMES = ("test", "val", "valid", "validation")
Files = tuple[list[str], list[int]]


def present(folder: Path) -> bool:
    return (folder / "train").is_dir() and test_folder(folder) is not None


def test_folder(folder: Path) -> Path | None:
    return next((folder / name for name in TEST_NAMES if (folder / name).is_dir()), None)


def read(
    folder: Path,
    *,
    image_size: int | None = None,
    test_fraction: float | None = None,
    channels: int | None = None,
) -> Undecoded:
    """`train/<class>/*` and `test/<class>/*`; or, with a test fraction, `<class>/*` alone, of which
    that part is held out per class."""
    if present(folder):
        if test_fraction is not None:
            raise InputError(f"{folder} has a test folder: a test fraction is not needed")
        held = test_folder(folder)
        assert held is not None
        classes = class_names(folder / "train")
        train, test = _listed(folder / "train", classes), _listed(held, classes)
        if strange := sorted(set(class_names(held)) - set(classes)):
            raise DataError(f"{held} has the class {strange[0]!r}, which train does not have")
    elif test_fraction is not None:
        classes = class_names(folder)
        train, test = _split(*_listed(folder, classes), test_fraction)
    else:
        raise DataError(
            f"{folder} has no train and test folders; for one folder of classes give a test "
            "fraction (--test-fraction 0.2)"
        )
    shape = _shape(train[0], image_size, channels)
    resize = image_size is not None
    return Undecoded(tuple(classes), _part(train, shape, resize), _part(test, shape, resize))


def class_names(folder: Path) -> list[str]:
    """The sorted names of the folders in a folder (as numbers, if all are), no two of them the same
    but for case."""
    found = (entry.name for entry in folder.iterdir() if entry.is_dir())
    names = in_order(class_name(name, folder) for name in found if not name.startswith("."))
    if not names:
        raise DataError(f"{folder} has no folders of classes")
    spelled: dict[str, str] = {}
    for name in names:
        other = spelled.setdefault(name.strip().casefold(), name)
        if other != name:
            raise DataError(f"{folder} has two classes of one name: {other!r} and {name!r}")
    return names


def _listed(folder: Path, classes: Sequence[str]) -> Files:
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


def _split(files: list[str], labels: list[int], fraction: float) -> tuple[Files, Files]:
    targets = np.asarray(labels)
    held = held_out(torch.from_numpy(targets), fraction).numpy()
    if len(lone := np.flatnonzero(np.bincount(targets) < 2)):
        place = Path(files[labels.index(lone[0])]).parent
        raise DataError(f"{place} has one image, which cannot be split")
    splits = [([files[i] for i in np.flatnonzero(m)], targets[m].tolist()) for m in (~held, held)]
    return splits[0], splits[1]


def _shape(files: list[str], size: int | None, channels: int | None) -> tuple[int, int, int]:
    """That of the first image, unless a size is asked for; grey only if every image is."""
    size_of_file(files[0])
    with opened(files[0], files[0]) as picture:
        turn_upright(picture)
        width, height = picture.size
    depth = channels or (3 if any(_mode(name) not in GREY for name in files) else 1)
    return (depth, size, size) if size is not None else (depth, height, width)


def _mode(name: str) -> str:
    size_of_file(name)
    with opened(name, name) as picture:
        return picture.mode


def _part(files: Files, shape: tuple[int, int, int], resize: bool) -> Split:
    return decoded(*files, shape, contents, resize=resize)
