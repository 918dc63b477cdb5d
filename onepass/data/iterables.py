"""Converts the batches of any iterable (a generator, a DataLoader, a Hugging Face dataset) to pairs
(x, y)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset as TorchDataset

from onepass.base.errors import InputError
from onepass.base.text import quoted
from onepass.data.base import Dataset
from onepass.data.hub import IMAGE_COLUMNS, LABEL_COLUMNS

X_COLUMNS, Y_COLUMNS = (*IMAGE_COLUMNS, "x"), (*LABEL_COLUMNS, "y")
GREY = ("1", "L")  # Pillow's modes without colour
Test = tuple[Any, Any] | Dataset | Iterable[Any]


def xy_pairs(batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Returns an iterator over the batches as pairs (x, y)."""
    return map(xy_pair, batches)


def xy_pair(batch: Any) -> tuple[Any, Any]:
    """Returns x and y of a batch, which is a pair or a dictionary of columns. A list of Pillow
    images becomes an array. Raises an InputError for anything else, and for a single sample.

    >>> xy_pair({"img": [[0.5]], "fine_label": [3], "coarse_label": [1]})
    ([[0.5]], [3])
    """
    if isinstance(batch, Mapping):
        x, y = _find_column(batch, X_COLUMNS), _find_column(batch, Y_COLUMNS)
    elif isinstance(batch, list | tuple) and len(batch) == 2:
        x, y = batch
    else:
        length = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
        given = f"a {type(batch).__name__}{length}"
        raise InputError(f"a batch must be a pair (x, y) or a dictionary of columns, not {given}")
    if _is_pair_with_samples(y):
        raise InputError(
            "a batch must be a pair (x, y) or a dictionary of columns, not a pair of batches or "
            "samples: give these one by one"
        )
    if np.ndim(y) == 0:
        raise InputError(
            f"y must hold a label for each sample of a batch, but it is {quoted(y)}: give batches, "
            "as iter(batch_size=10) does, or lists of one sample"
        )
    pictures = isinstance(x, Sequence) and len(x) and isinstance(x[0], Image.Image)
    return (_stack_pictures(x) if pictures else x), y


def _is_pair_with_samples(y: Any) -> bool:
    """Returns whether y, instead of labels, is a batch or a sample with its label."""
    if not isinstance(y, list | tuple) or len(y) != 2:
        return isinstance(y, Mapping)
    first = y[0]
    nested = isinstance(first, Sequence) and not isinstance(first, str | bytes)
    return nested or isinstance(first, Image.Image) or getattr(first, "ndim", 0) > 0


def _find_column(batch: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    found = next((name for name in names if name in batch), None)
    if found is None:
        raise InputError(
            f"a batch must have one of the columns {', '.join(names)}; it has {sorted(batch)}"
        )
    return batch[found]


def _stack_pictures(pictures: Sequence[Image.Image]) -> np.ndarray[Any, Any]:
    """Returns pictures as uint8 (n, c, h, w), with one channel if all are grey. Raises an
    InputError if their sizes differ."""
    if len(sizes := {picture.size for picture in pictures}) > 1:
        raise InputError(f"the images of a batch must have the same size, not {sorted(sizes)[:2]}")
    grey = all(picture.mode in GREY for picture in pictures)
    arrays = [np.asarray(picture.convert("L" if grey else "RGB")) for picture in pictures]
    return np.stack([array[None] if grey else array.transpose(2, 0, 1) for array in arrays])


def describe_type(given: object) -> str:
    """Returns a value's type in words, for errors about values that are not batches; with advice if
    it is a dataset of torch."""
    hint = " (a DataLoader makes batches from it)" if isinstance(given, TorchDataset) else ""
    return f"a {type(given).__name__}{hint}"


def repeatable_batches(test: Test) -> Iterable[Any]:
    """Returns a test set as batches that can be iterated again and again; a pair (x, y) or a
    Dataset is one batch. Raises an InputError for a generator."""
    if isinstance(test, Dataset):
        return [(test.test_x, test.test_y)]
    if isinstance(test, tuple) and len(test) == 2 and not _is_pair_with_samples(test[1]):
        return [test]
    if not isinstance(test, Iterable):
        raise InputError(f"test must be (x, y), a Dataset or batches, not {describe_type(test)}")
    if iter(test) is test:  # an iterator, for example a generator
        raise InputError(
            "test is read again at every evaluation, but a generator can be read only once: give "
            "(x, y), a list of batches or a loader"
        )
    return test
