"""Reads CIFAR10 and CIFAR100 in the version for Python: pickles, parsed without running code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onepass.base.errors import DataError
from onepass.base.text import error_in_one_line
from onepass.data import pickles
from onepass.data.files import (
    Array,
    Split,
    Undecoded,
    decode_class_name,
    read_bytes,
    split_of_arrays,
)


class Layout(NamedTuple):
    """The file names of a dataset, and the names of the entries in them: `labels` in the batches,
    `names` (the class names) in the file `meta`."""

    train: list[str]
    test: list[str]
    labels: str
    meta: str
    names: str


LAYOUTS = {
    "cifar10": Layout(
        [f"data_batch_{number}" for number in range(1, 6)],
        ["test_batch"],
        "labels",
        "batches.meta",
        "label_names",
    ),
    "cifar100": Layout(["train"], ["test"], "fine_labels", "meta", "fine_label_names"),
}


def has_cifar_files(folder: Path, name: str) -> bool:
    """Returns whether a folder holds the first training file of `name`."""
    return (folder / LAYOUTS[name].train[0]).is_file()


def read_cifar(folder: Path, name: str) -> Undecoded:
    """Returns the images and labels of cifar10, or the images and fine labels of cifar100."""
    layout = LAYOUTS[name]
    names = _read_class_names(folder / layout.meta, layout.names)
    train, test = (
        _read_split(folder, files, layout.labels) for files in (layout.train, layout.test)
    )
    return Undecoded(names, train, test)


def _read_class_names(path: Path, entry: str) -> tuple[str, ...]:
    values = _read_entries(path).get(entry)
    if not isinstance(values, list) or not all(isinstance(value, str | bytes) for value in values):
        raise DataError(f"{path} has no list of class names {entry!r}")
    names: dict[str, None] = {}
    for value in values:
        name = decode_class_name(value, path)
        if name in names:
            raise DataError(f"{path} has two classes named {name!r}")
        names[name] = None
    return tuple(names)


def _read_split(folder: Path, files: list[str], labels: str) -> Split:
    batches = [_read_batch(folder / file, labels) for file in files]
    images = [batch[0] for batch in batches]
    joined = images[0] if len(images) == 1 else np.concatenate(images)
    return split_of_arrays(joined, np.concatenate([batch[1] for batch in batches]))


def _read_batch(path: Path, labels: str) -> tuple[Array, Array]:
    entries = _read_entries(path)
    try:
        # a row per image: its red, green and blue planes
        pixels = pickles.decode_array(entries["data"]).reshape(-1, 3, 32, 32)
        targets = _as_label_array(entries[labels])
    except Exception as problem:  # a wrong description of an array may raise anything
        raise DataError(
            f"{path} is not a batch of CIFAR images: {error_in_one_line(problem)}"
        ) from None
    if pixels.dtype != np.uint8 or len(targets) != len(pixels):
        raise DataError(
            f"{path} must hold uint8 images and a label for each; it holds {len(pixels)} images of "
            f"{pixels.dtype} and {len(targets)} labels"
        )
    return pixels, targets


def _as_label_array(values: Any) -> Array:
    if isinstance(values, list):
        if not all(type(value) is int for value in values):  # True is not a label
            raise DataError("its labels are not whole numbers")
        return np.array(values, dtype=np.int64)
    labels = pickles.decode_array(values)
    if labels.ndim != 1:
        raise DataError(f"its labels have the shape {labels.shape}")
    return labels.astype(np.int64)


def _read_entries(path: Path) -> dict[str, Any]:
    """Returns the pickled dict of a file, with its keys as text; raises a DataError if the file
    holds none."""
    content = read_bytes(path)
    try:
        entries = pickles.read_pickle(content)
    except DataError as problem:
        raise DataError(f"{path} was refused: {problem}") from None
    except Exception as problem:  # a damaged pickle may raise anything
        raise DataError(
            f"{path} is damaged, or not a CIFAR file: {error_in_one_line(problem)}"
        ) from None
    if not isinstance(entries, dict):
        raise DataError(f"{path} is not a CIFAR file: it holds no dict")
    return {
        key.decode(errors="replace") if isinstance(key, bytes) else key: value
        for key, value in entries.items()
    }
