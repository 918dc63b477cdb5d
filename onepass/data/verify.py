"""Checks whether a dataset of the catalogue is on this machine, and whether it is complete."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from onepass.data import cache
from onepass.data.base import Dataset, channel_statistics
from onepass.data.catalogue import CatalogueEntry
from onepass.data.loading import load
from onepass.data.sources import find_source


class CheckResult(NamedTuple):
    """The result of one check: whether it is good, and a text for users."""

    good: bool
    text: str


def describe_location(entry: CatalogueEntry, root: Path) -> str:
    """Returns in words where a dataset is: its path and the form of its files, in the cache after a
    download, or "missing"."""
    found = find_source(entry, root)
    if found is not None:
        return f"{found.path} ({found.reader.form})"
    if cache.cache_folder(entry.name, "download").is_dir():
        return "downloaded, in the cache"
    return "missing"


def verify(entry: CatalogueEntry, root: Path) -> list[CheckResult]:
    """Returns the results of all checks of a dataset: published checksums, counts per class and
    every byte of the cached arrays, with a description of the pixels. Loads it first, which may
    raise a DataError."""
    dataset = load(entry.name, root=root)
    results = [CheckResult(True, f"found: {describe_location(entry, root)}")]
    results += _check_checksums(entry, root)
    results += _check_counts(entry, dataset)
    results.append(_describe_pixels(dataset))
    found = find_source(entry, root)
    # the cache folder that `load` used
    identity = str(found.path.resolve()) if found else "download"
    folder = cache.cache_folder(entry.name, identity)
    problem = cache.find_damage(folder, thorough=True)
    results.append(CheckResult(problem is None, problem or f"cached arrays are intact: {folder}"))
    return results


def _check_checksums(entry: CatalogueEntry, root: Path) -> list[CheckResult]:
    """Returns a result for each file that is there and has a published checksum."""
    found = find_source(entry, root)
    if found is None:
        return []
    path, results = found.path, []
    for name, published in entry.md5.items():
        file = path if path.name == name else path / name  # the source may be a zip file
        if file.is_file():
            good = cache.file_checksum(file, "md5") == published
            results.append(
                CheckResult(good, f"{name}: {'as published' if good else 'not as published'}")
            )
    return results


def _check_counts(entry: CatalogueEntry, dataset: Dataset) -> list[CheckResult]:
    """Returns two results, for training and test images: whether each class has the published
    number of them."""
    results = []
    for part, y, official in (
        ("training", dataset.train_y, entry.train),
        ("test", dataset.test_y, entry.test),
    ):
        counts = torch.bincount(y, minlength=len(official)).tolist()
        wrong = [
            f"{dataset.class_names[label]} {counts[label]} of {official[label]}"
            for label in range(len(official))
            if counts[label] != official[label]
        ]
        summary = f"{sum(counts)} {part} images in {len(official)} classes"
        results.append(CheckResult(not wrong, summary + (f": {', '.join(wrong)}" if wrong else "")))
    return results


def _describe_pixels(dataset: Dataset) -> CheckResult:
    """Returns shape, mean and standard deviation of the training images as a good result."""
    mean, std = channel_statistics(dataset.train_x)
    numbers = [" ".join(f"{value:.4f}" for value in values) for values in (mean, std)]
    shape = "x".join(map(str, dataset.train_x.shape[1:]))
    return CheckResult(True, f"pixels {shape}, mean {numbers[0]}, standard deviation {numbers[1]}")
