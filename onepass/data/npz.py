"""Reads images or feature vectors from a `.npz` file of the user's own."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from onepass.base import inputs
from onepass.base.errors import DataError, InputError
from onepass.base.parts import Label
from onepass.base.seeds import generator, permutation
from onepass.base.text import error_in_one_line, quoted
from onepass.data.base import Dataset
from onepass.data.files import (
    PACKINGS,
    Array,
    decode_class_name,
    name_unreadable,
    regular_file_size,
)
from onepass.data.labels import class_numbers, sorted_classes

KEYS = "train_x, train_y, test_x, test_y (or x, y with a test fraction), and perhaps class_names"


def read_npz(
    path: Path, test_fraction: float | None = None, *, mirror_is_same_class: bool = True
) -> Dataset:
    """Returns the dataset in a `.npz` file.

    Images are uint8 (n, h, w), or uint8 or float (n, c, h, w) or (n, h, w, c). Vectors are float
    (n, d). Labels are text or whole numbers; the sorted different labels are the classes. Raises a
    DataError for anything else, and an InputError for a wrong test fraction.
    """
    arrays = _read_arrays(path)
    if "train_x" in arrays and test_fraction is not None:
        raise InputError(f"{path} has test samples: leave out the test fraction")
    if "x" in arrays and test_fraction is not None:
        x, labels = _read_samples(path, arrays, "x"), _read_labels(path, arrays, "y")
        known = sorted_classes(labels)
        y = class_numbers(labels, known)
        held = held_out_mask(y, test_fraction)
        splits = [(x[~held], y[~held]), (x[held], y[held])]
    elif "train_x" in arrays:
        pairs = [
            (_read_samples(path, arrays, f"{name}_x"), _read_labels(path, arrays, f"{name}_y"))
            for name in ("train", "test")
        ]
        known = sorted_classes(pairs[0][1])
        if strange := sorted_classes(set(pairs[1][1]).difference(known)):
            label = quoted(strange[0])
            raise DataError(f"{path}: test_y has the label {label}, which train_y does not have")
        splits = [(x, class_numbers(labels, known)) for x, labels in pairs]
    else:
        raise DataError(f"{path} must hold {KEYS}; it holds {', '.join(sorted(arrays))}")
    (train_x, train_y), (test_x, test_y) = splits
    if train_x.shape[1:] != test_x.shape[1:] or train_x.dtype != test_x.dtype:
        raise DataError(f"{path}: train_x and test_x differ in dtype or in the shape of a sample")
    return Dataset(
        name=path.stem,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        class_names=_read_class_names(path, arrays, known),
        mirror_is_same_class=mirror_is_same_class,
    )


def _read_arrays(path: Path) -> dict[str, Array]:
    """Returns the arrays of a `.npz` file; raises a DataError if it is damaged, or too large to
    unpack."""
    regular_file_size(path)
    try:
        with name_unreadable(path), path.open("rb") as file:
            if file.peek(6).startswith(b"\x93NUMPY"):
                raise DataError(f"{path} holds a single array (.npy); it must hold {KEYS}")
            archive = np.lib.npyio.NpzFile(file, allow_pickle=False)
            assert archive.zip is not None
            _refuse_zip_bombs(path, archive.zip)
            arrays = dict(archive)
    except DataError:
        raise
    except Exception as problem:  # a damaged or foreign file may raise anything
        raise DataError(
            f"{path} is damaged, or not a .npz of arrays: {error_in_one_line(problem)}"
        ) from None
    for name, values in arrays.items():
        if not isinstance(values, np.ndarray):
            raise DataError(f"{path} is not a .npz of arrays: {name} is not an array")
    return arrays


def _refuse_zip_bombs(path: Path, archive: zipfile.ZipFile) -> None:
    """Raises a DataError if the unpacked arrays would not fit into RAM, or if they are compressed
    by a method that could unpack more than the file declares."""
    size, ram = sum(member.file_size for member in archive.infolist()), _ram_bytes()
    if ram is not None and size > ram:
        raise DataError(f"{path} unpacks to {size} bytes, but this machine has {ram} bytes of RAM")
    if any(member.compress_type not in PACKINGS for member in archive.infolist()):
        raise DataError(
            f"{path} is compressed by another method than deflate: save it with np.savez_compressed"
        )


def _ram_bytes() -> int | None:
    """Returns the bytes of RAM of this machine; None if the system does not say (Windows)."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read_samples(path: Path, arrays: dict[str, Array], name: str) -> Tensor:
    if name not in arrays:
        raise DataError(f"{path} has no {name}; it must hold {KEYS}")
    values = arrays[name]
    # channels last: (n, h, w, c)
    if values.ndim == 4 and values.shape[3] in (1, 3) and values.shape[1] not in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    try:
        return inputs.as_samples(values)
    except InputError as problem:
        raise DataError(f"{path}, {name}: {str(problem).removeprefix('x: ')}") from None


def _read_labels(path: Path, arrays: dict[str, Array], name: str) -> list[Label]:
    samples = arrays.get(name.replace("y", "x"))
    if name not in arrays or samples is None:
        raise DataError(f"{path} has no {name}; it must hold {KEYS}")
    try:
        given = arrays[name]
        text = np.char.decode(given, "utf-8") if given.dtype.kind == "S" else given
        return inputs.as_labels(text, len(samples))
    except (InputError, UnicodeError) as problem:
        raise DataError(f"{path}, {name}: {str(problem).removeprefix('y: ')}") from None


def held_out_mask(y: Tensor, fraction: float) -> Tensor:
    """Returns a mask (n) of samples to hold out: this fraction of each class, at least one of its
    samples but never all. So a class of one sample holds out none. The draw is always the same."""
    if not 0 < fraction < 1:
        raise InputError(f"the test fraction must lie between 0 and 1, not {fraction}")
    held = torch.zeros(len(y), dtype=torch.bool)
    rng = generator(0, "test fraction")
    for label in torch.unique(y):
        index = torch.nonzero(y == label).flatten()
        count = min(max(1, round(len(index) * fraction)), len(index) - 1)
        held[index[permutation(len(index), rng)[:count]]] = True
    return held


def _read_class_names(path: Path, arrays: dict[str, Array], known: list[Label]) -> tuple[str, ...]:
    """Returns the class names in the file, or the labels themselves if it holds none."""
    if "class_names" not in arrays:
        return tuple(map(str, known))
    given = np.atleast_1d(arrays["class_names"])  # a single name may be stored without a dimension
    if given.ndim != 1 or given.dtype.kind not in "USiufb":
        raise DataError(f"{path}: class_names must be a list of names, one for each class")
    try:
        values = [value if isinstance(value, bytes) else str(value) for value in given]
    except (ValueError, SystemError) as problem:  # a code point that is not a character
        raise DataError(f"{path}: class_names are not text: {problem}") from None
    names = tuple(decode_class_name(value, path) for value in values)
    if len(names) != len(known):
        raise DataError(f"{path}: {len(names)} class names for {len(known)} classes")
    if len(set(names)) != len(names):
        raise DataError(f"{path}: class_names holds a name twice")
    return names
