"""A dataset by its name, or by the path of your own files."""

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
    """The dataset of that name, or the images or arrays at that path.

    Parameters
    ----------
    name
        `digits` and `synthetic` need no files; `mnist`, `cifar10`, `cifar100`, `tiny-imagenet` are
        found below `root` (or `ONEPASS_DATA`, or the folder data). Anything with a slash, or that
        ends in .npz, .csv or .parquet, is a path: a folder `train/<class>/*` and `test/<class>/*`,
        one folder of classes with a `test_fraction`, a .npz of images or vectors, or a table with a
        column `label` and a `test` file or fraction. Images are PNG, JPEG, WebP, BMP, GIF or TIFF
        files (or PPM, if they are called so) of at most 89 million pixels, turned upright if their
        EXIF data say how the camera was held.
    image_size
        To which your own images are scaled; they must be of one size without it.
    mirror_is_same_class
        False for your own images if a mirror image is not of the same class, as of letters.
    label
        Which column of a .csv or .parquet holds the labels; all others are features.
    test
        Another .csv or .parquet of the same columns, to test on.

    >>> load("digits").train_x.shape
    torch.Size([1442, 1, 8, 8])
    >>> load("digit")
    Traceback (most recent call last):
    ...
    onepass.base.errors.UnknownNameError: unknown dataset 'digit'. Did you mean 'digits'? Valid: \
cifar10, cifar100, digits, mnist, synthetic, tiny-imagenet.
    """
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
    made = None if path or name in CATALOGUE else DATASETS[name]
    valid = list(inspect.signature(made.make).parameters) if made else []
    for key in options:
        if key not in valid:
            raise UnknownNameError(f"option of dataset {name!r}", key, valid)
    if made:
        return made.make_validated(options)
    with name_unreadable(name if path else root):
        return (
            _load_own_files(name, **own) if path else _load_catalogue_dataset(CATALOGUE[name], root)
        )


def _expect_own_options(own: dict[str, Any]) -> None:
    """What may be said of one's own files."""
    for key, kind in OWN_FILE_OPTIONS.items():
        expect_type(key, own[key], kind)
    size = own["image_size"]
    if size is not None and not 1 <= size <= LARGEST_SIZE:
        raise InputError(f"image_size must be at least 1 and at most {LARGEST_SIZE}")


def _expect_known(name: str, own: dict[str, Any]) -> None:
    """A dataset of that name, of which nothing was said that is for one's own files."""
    if is_known(name):
        _expect_not_given(own, "your own files", name)
    elif Path(name).is_file():
        raise _unsupported_file(Path(name))
    elif Path(name).exists():
        raise InputError(f"unknown dataset {name!r}; for the files of that name write './{name}'")
    else:
        raise UnknownNameError("dataset", name, dataset_names())


def _expect_not_given(said: dict[str, Any], what: str, name: str) -> None:
    """Raises an InputError if something was said that is for another kind of data."""
    for key, value in said.items():
        if value is not None:
            raise InputError(f"{key} is for {what}, not for {name!r}")


def _load_catalogue_dataset(entry: CatalogueEntry, root: Path) -> Dataset:
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
    """Fetches a dataset from the hub into the cache, where `load` finds it afterwards."""
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
    """TinyImageNet's classes in the order of its wnids.txt, which the hub's copy does not keep."""
    text = resources.files("onepass.data").joinpath("wnids.txt").read_text()
    return tuple(text.split())


def reorder_classes(undecoded: Undecoded, names: tuple[str, ...]) -> Undecoded:
    """The same images with the classes in another order; other classes are left as they are."""
    if set(undecoded.class_names) != set(names):
        return undecoded
    place = {name: label for label, name in enumerate(names)}
    moved = np.array([place[name] for name in undecoded.class_names])
    train, test = (
        part._replace(labels=moved[part.labels]) for part in (undecoded.train, undecoded.test)
    )
    return Undecoded(names, train, test)


def _unsupported_file(path: Path) -> DataError:
    return DataError(
        f"{path} is a file of no kind that is read here: .npz, .csv and .parquet are, and folders "
        "of images"
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
    """The user's own files at that path."""
    path = Path(name)
    if path.suffix.lower() in TABLES:
        of_images = {"image_size": image_size, "mirror_is_same_class": mirror_is_same_class}
        _expect_not_given(of_images, "images", name)
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
    identity = json.dumps([str(path.resolve()), image_size, test_fraction])
    arrays = cache.cached_arrays(
        cache.cache_folder(own_name, identity),
        f"{fingerprint(path)} upright",  # they were not, once, and may be cached so
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
    """Refuses what cannot be right before anything is decoded."""
    count = len(undecoded.class_names)
    if entry is not None and count != len(entry.train):
        raise DataError(f"{path}: {entry.name} must have {len(entry.train)} classes, not {count}")
    for name, part in (("training", undecoded.train), ("test", undecoded.test)):
        if not len(part.labels):
            raise DataError(f"{path} has no {name} images")
        low, high = int(part.labels.min()), int(part.labels.max())
        if low < 0 or high >= count:
            raise DataError(f"{path}: {name} labels from {low} to {high} for {count} classes")
        if entry is not None and part.shape != entry.shape:
            raise DataError(f"{path}: {entry.name} must be {entry.shape}, not {part.shape}")
    return undecoded


def _warn_if_incomplete(entry: CatalogueEntry, arrays: cache.CachedArrays) -> None:
    """Tells of images that are missing."""
    for part, y, official in (
        ("training", arrays.train_y, entry.train),
        ("test", arrays.test_y, entry.test),
    ):
        counts = Counter(y.tolist())
        if [counts[label] for label in range(len(official))] != list(official):
            log.warning(
                "%s is not whole: %d %s images of %d", entry.name, len(y), part, sum(official)
            )
