"""Loads a dataset by its name, or from the path of the user's own files."""

from __future__ import annotations

import inspect
import json
import logging
import math
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onepass.base.errors import DataError, InputError, UnknownNameError
from onepass.base.settings import expect_type
from onepass.base.text import printable, shortened
from onepass.data import cache, folders, hub, npz, sources, tabular
from onepass.data.base import Dataset
from onepass.data.catalogue import CATALOGUE, CatalogueEntry, data_root
from onepass.data.files import MOST_PIXELS, Undecoded, fingerprint, name_unreadable
from onepass.data.known import TABLES, dataset_names, is_known, is_path
from onepass.data.registry import DATASETS

LARGEST_SIZE = math.isqrt(MOST_PIXELS)
OWN_FILE_OPTIONS: dict[str, Any] = {
    "image_size": int | None,
    "test_fraction": float | None,
    "mirror_is_same_class": bool | None,
    "label": str | None,
    "test": str | Path | None,
}
log = logging.getLogger("onepass")


def load(
    name: str | Path,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    mirror_is_same_class: bool | None = None,
    label: str | None = None,
    test: str | Path | None = None,
    **options: Any,
) -> Dataset:
    """Returns the dataset of this name, or the images, arrays or table at this path.

    Parameters
    ----------
    name
        Name of a dataset, or a path. Text is a path if it has a slash or ends in .npz, .csv or
        .parquet; a Path always is. `digits` and `synthetic` need no files. The files of `mnist`,
        `cifar10`, `cifar100` and `tiny-imagenet` must be below `root`, or downloaded before by
        `onepass data cache NAME --download`.

        A path is one of these: a folder with `train/<class>/*` and `test/<class>/*`; a folder with
        `<class>/*`, and a `test_fraction`; a .npz of images or vectors; a .csv or .parquet, with
        `label`, and `test` or a `test_fraction`.

        Image files are PNG, JPEG, WebP, BMP, GIF, TIFF or PPM with at most 89 million pixels. They
        are turned upright by their EXIF data.
    root
        Folder of the published datasets; by default `ONEPASS_DATA`, or the folder `data`.
    image_size
        Side in pixels to which your own images are scaled; without it they must have the same size.
    test_fraction
        Fraction of each class that is held out as test samples, if your files have none.
    mirror_is_same_class
        False if mirror images of your own images are not valid examples of their class (letters).
    label
        Column of a .csv or .parquet that holds the labels; all others are features.
    test
        Another .csv or .parquet with the same columns, to test on.
    options
        Arguments of the function that makes the dataset, for example `classes` of `synthetic`.

    >>> load("digits").train_x.shape
    torch.Size([1442, 1, 8, 8])
    >>> load("digit")
    Traceback (most recent call last):
    ...
    onepass.base.errors.UnknownNameError: unknown dataset 'digit'. Did you mean 'digits'? Valid: \
cifar10, cifar100, digits, mnist, synthetic, tiny-imagenet. For files of your own, give their \
path, such as ./digit.
    """
    # a Path never means a name: Path("digits") becomes "./digits"
    name = str(name) if not isinstance(name, Path) else f"{name.parent}/{name.name}"
    own: dict[str, Any] = {
        "image_size": image_size,
        "test_fraction": test_fraction,
        "mirror_is_same_class": mirror_is_same_class,
        "label": label,
        "test": test,
    }
    _expect_own_options(own)
    path, root = is_path(name), data_root(root)
    if not path:
        _expect_known(name, own)
    info = None if path or name in CATALOGUE else DATASETS[name]
    valid = list(inspect.signature(info.make).parameters) if info else []
    for key in options:
        if key not in valid:
            raise UnknownNameError(f"option of dataset {name!r}", key, valid)
    if info:
        return info.make_validated(options)
    with name_unreadable(name if path else root):
        return (
            _load_own_files(name, **own) if path else _load_catalogue_dataset(CATALOGUE[name], root)
        )


def _expect_own_options(own: dict[str, Any]) -> None:
    """Raises an InputError if an option for the user's own files is invalid."""
    for key, kind in OWN_FILE_OPTIONS.items():
        expect_type(key, own[key], kind)
    size = own["image_size"]
    if size is not None and not 1 <= size <= LARGEST_SIZE:
        raise InputError(f"image_size must lie between 1 and {LARGEST_SIZE}")


def _expect_known(name: str, own: dict[str, Any]) -> None:
    """Raises an OnepassError unless the name is known and no option for the user's own files is
    given."""
    if is_known(name):
        _expect_not_given(own, "your own files", name)
    elif Path(name).is_file():
        raise _unsupported_file(Path(name))
    elif Path(name).exists():
        raise InputError(f"unknown dataset {name!r}; for the folder of this name write './{name}'")
    else:
        files = f" For files of your own, give their path, such as ./{printable(shortened(name))}."
        raise UnknownNameError("dataset", name, dataset_names(), files)


def _expect_not_given(options: dict[str, Any], what: str, name: str) -> None:
    """Raises an InputError if an option is given that is for another kind of data (`what`)."""
    for key, value in options.items():
        if value is not None:
            raise InputError(f"{key} is for {what}, not for {name!r}")


def _load_catalogue_dataset(entry: CatalogueEntry, root: Path) -> Dataset:
    """Returns a dataset of the catalogue from its files below the root, or from an earlier
    download. Raises a DataError if there are neither."""
    found = sources.find_source(entry, root)
    if found is None:
        downloaded = cache.open_cached(cache.cache_folder(entry.name, "download"))
        if downloaded is None:
            raise entry.missing(root)
        return _make_dataset(entry.name, downloaded, entry)
    path, reader = found
    folder = cache.cache_folder(entry.name, str(path.resolve()))
    arrays = cache.cached_arrays(
        folder, fingerprint(path), lambda: _validated(reader.read(path), path, entry)
    )
    return _make_dataset(entry.name, arrays, entry)


def download_dataset(entry: CatalogueEntry) -> Dataset:
    """Downloads a dataset from the hub into the cache, where `load` finds it afterwards, and
    returns it."""
    fetched = hub.download_from_hub(entry.hub, entry.shape)
    undecoded = fetched.undecoded
    if entry.name == "tiny-imagenet":
        undecoded = reorder_classes(undecoded, tiny_imagenet_wnids())
    folder = cache.cache_folder(entry.name, "download")
    return _make_dataset(
        entry.name,
        cache.cached_arrays(
            folder, fetched.fingerprint, lambda: _validated(undecoded, entry.hub, entry)
        ),
        entry,
    )


def tiny_imagenet_wnids() -> tuple[str, ...]:
    """Returns TinyImageNet's classes in the order of its wnids.txt, which the hub's copy lacks."""
    text = resources.files("onepass.data").joinpath("wnids.txt").read_text()
    return tuple(text.split())


def reorder_classes(undecoded: Undecoded, names: tuple[str, ...]) -> Undecoded:
    """Returns the dataset with its classes numbered in the order of `names`; returns it unchanged
    if its classes are not exactly these."""
    if set(undecoded.class_names) != set(names):
        return undecoded
    number_of = {name: label for label, name in enumerate(names)}
    new_labels = np.array([number_of[name] for name in undecoded.class_names])  # by old label
    train, test = (
        split._replace(labels=new_labels[split.labels])
        for split in (undecoded.train, undecoded.test)
    )
    return Undecoded(names, train, test)


def _unsupported_file(path: Path) -> DataError:
    return DataError(
        f"{path} has an unknown format: give a .npz, .csv or .parquet file, or a folder of images"
    )


def _load_own_files(
    name: str,
    *,
    image_size: int | None,
    test_fraction: float | None,
    mirror_is_same_class: bool | None,
    label: str | None,
    test: str | Path | None,
) -> Dataset:
    """Returns the dataset of the user's own files. Raises an InputError for an option that is for
    other files."""
    path = Path(name)
    if path.suffix.lower() in TABLES:
        image_options = {"image_size": image_size, "mirror_is_same_class": mirror_is_same_class}
        _expect_not_given(image_options, "images", name)
        if test is not None and Path(test).suffix.lower() not in TABLES:
            raise InputError(f"test must be a .csv or .parquet file, not {str(test)!r}")
        other = None if test is None else Path(test)
        return tabular.read_table(path, label, test=other, test_fraction=test_fraction)
    _expect_not_given({"label": label, "test": test}, "a .csv or .parquet file", name)
    same_class = mirror_is_same_class is not False
    if path.suffix.lower() == ".npz":
        _expect_not_given({"image_size": image_size}, "folders of images", name)
        return npz.read_npz(path, test_fraction, mirror_is_same_class=same_class)
    if path.is_file():
        raise _unsupported_file(path)
    if not path.is_dir():
        raise DataError(f"there is no folder {path}")
    own_name = path.resolve().name
    # the same folder with other options is another dataset, with a cache of its own
    identity = json.dumps([str(path.resolve()), image_size, test_fraction])
    arrays = cache.cached_arrays(
        cache.cache_folder(own_name, identity),
        f"{fingerprint(path)} upright",  # older versions cached images without turning them
        lambda: _validated(
            folders.read_class_folders(path, image_size=image_size, test_fraction=test_fraction),
            path,
            None,
        ),
    )
    return _make_dataset(own_name, arrays, None, same_class)


def _make_dataset(
    name: str, arrays: cache.CachedArrays, entry: CatalogueEntry | None, same_class: bool = True
) -> Dataset:
    if entry is not None:
        _warn_if_incomplete(entry, arrays)
    return Dataset(
        name=name,
        train_x=torch.from_numpy(arrays.train_x),
        train_y=torch.from_numpy(arrays.train_y),
        test_x=torch.from_numpy(arrays.test_x),
        test_y=torch.from_numpy(arrays.test_y),
        class_names=arrays.class_names,
        mean=entry.mean if entry else None,
        std=entry.std if entry else None,
        mirror_is_same_class=entry.mirror_is_same_class if entry else same_class,
    )


def _validated(undecoded: Undecoded, path: Path | str, entry: CatalogueEntry | None) -> Undecoded:
    """Returns the dataset unchanged. Raises a DataError, before anything is decoded, if it has no
    images, labels without a class, or other classes or shapes than its catalogue entry."""
    count = len(undecoded.class_names)
    if entry is not None and count != len(entry.train):
        raise DataError(f"{path}: {entry.name} must have {len(entry.train)} classes, not {count}")
    for name, split in (("training", undecoded.train), ("test", undecoded.test)):
        if not len(split.labels):
            raise DataError(f"{path} has no {name} images")
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= count:
            raise DataError(f"{path}: {name} labels must be 0 to {count - 1}, not {low} to {high}")
        if entry is not None and split.shape != entry.shape:
            raise DataError(f"{path}: images must be {entry.shape}, not {split.shape}")
    return undecoded


def _warn_if_incomplete(entry: CatalogueEntry, arrays: cache.CachedArrays) -> None:
    """Logs a warning if the numbers of images per class are not the published ones."""
    for part, y, official in (
        ("training", arrays.train_y, entry.train),
        ("test", arrays.test_y, entry.test),
    ):
        counts = Counter(y.tolist())
        if [counts[label] for label in range(len(official))] != list(official):
            log.warning(
                "%s has other numbers of images per class than published: "
                "%d %s images instead of %d",
                entry.name,
                len(y),
                part,
                sum(official),
            )
