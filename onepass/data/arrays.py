"""A `.npz` of your own: images or feature vectors."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from onepass import inputs
from onepass.data.base import Dataset
from onepass.data.files import Array
from onepass.errors import DataError, InputError
from onepass.seeds import generator, permutation

DAMAGED = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
KEYS = "train_x, train_y, test_x, test_y (or x, y with a test fraction), and perhaps class_names"


def read(
    path: Path, test_fraction: float | None = None, *, mirror_is_same_class: bool = True
) -> Dataset:
    """Images as uint8 (n, h, w), (n, c, h, w) or (n, h, w, c), vectors as floats (n, d); labels are
    whole numbers, and the different ones are the classes, in their order."""
    arrays = _arrays(path)
    if "train_x" in arrays and test_fraction is not None:
        raise InputError(f"{path} has a test part: a test fraction is not needed")
    if "x" in arrays and test_fraction is not None:
        x, y = _samples(path, arrays, "x"), _labels(path, arrays, "y")
        held = _held(y, test_fraction)
        splits = [(x[~held], y[~held]), (x[held], y[held])]
    elif "train_x" in arrays:
        splits = [
            (_samples(path, arrays, f"{p}_x"), _labels(path, arrays, f"{p}_y"))
            for p in ("train", "test")
        ]
    else:
        raise DataError(f"{path} must hold {KEYS}; it holds {', '.join(sorted(arrays))}")
    known = torch.unique(splits[0][1])
    if strange := sorted(set(splits[1][1].tolist()) - set(known.tolist())):
        raise DataError(f"{path}: the test labels have {strange[0]}, which train does not have")
    (train_x, train_y), (test_x, test_y) = splits
    if train_x.shape[1:] != test_x.shape[1:] or train_x.dtype != test_x.dtype:
        raise DataError(f"{path}: train_x and test_x hold samples of different kinds")
    return Dataset(
        name=path.stem,
        train_x=train_x,
        train_y=torch.searchsorted(known, train_y),
        test_x=test_x,
        test_y=torch.searchsorted(known, test_y),
        class_names=_names(path, arrays, known),
        mirror_is_same_class=mirror_is_same_class,
    )


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                return dict(archive)
    except FileNotFoundError:
        raise DataError(f"there is no {path}") from None
    except DAMAGED as problem:
        raise DataError(f"{path} is not a whole .npz of arrays: {problem}") from None
    raise DataError(f"{path} holds a single array; it must hold {KEYS}")


def _samples(path: Path, arrays: dict[str, Array], name: str) -> Tensor:
    if name not in arrays:
        raise DataError(f"{path} has no {name}; it must hold {KEYS}")
    values = arrays[name]
    if values.ndim == 4 and values.shape[3] in (1, 3) and values.shape[1] not in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    try:
        return inputs.as_samples(values)
    except InputError as problem:
        raise DataError(f"{path}, {name}: {str(problem).removeprefix('x: ')}") from None


def _labels(path: Path, arrays: dict[str, Array], name: str) -> Tensor:
    samples = arrays.get(name.replace("y", "x"))
    if name not in arrays or samples is None:
        raise DataError(f"{path} has no {name}; it must hold {KEYS}")
    try:
        return inputs.as_labels(arrays[name], len(samples))
    except InputError as problem:
        raise DataError(f"{path}, {name}: {problem}") from None


def _held(y: Tensor, fraction: float) -> Tensor:
    if not 0 < fraction < 1:
        raise InputError(f"the test fraction must lie between 0 and 1, not {fraction}")
    held = torch.zeros(len(y), dtype=torch.bool)
    rng = generator(0, "test fraction")
    for label in torch.unique(y):
        index = torch.nonzero(y == label).flatten()
        count = min(max(1, round(len(index) * fraction)), len(index) - 1)
        held[index[permutation(len(index), rng)[:count]]] = True
    return held


def _names(path: Path, arrays: dict[str, Array], known: Tensor) -> tuple[str, ...]:
    if "class_names" not in arrays:
        return tuple(str(label) for label in known.tolist())
    given = np.atleast_1d(arrays["class_names"])
    names = tuple(str(name) for name in (given.astype(str) if given.dtype.kind == "S" else given))
    if len(names) != len(known):
        raise DataError(f"{path}: {len(names)} class names for {len(known)} classes")
    if len(set(names)) != len(names):
        raise DataError(f"{path} has two classes of one name")
    return names
