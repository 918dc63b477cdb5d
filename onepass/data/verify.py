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


class Finding(NamedTuple):
    """The result of one check, and whether it is good."""

    good: bool
    text: str


def describe_location(entry: CatalogueEntry, root: Path) -> str:
    """Returns the path at which a dataset was found, or "missing", for users."""
    found = find_source(entry, root)
    if found is not None:
        return f"{found.path} ({found.reader.form})"
    if cache.cache_folder(entry.name, "download").is_dir():
        return "downloaded, in the cache"
    return "missing"


def verify(entry: CatalogueEntry, root: Path) -> list[Finding]:
    """Checks published checksums, counts per class and every byte of the cached arrays; describes
    the pixels."""
    dataset = load(entry.name, root=root)
    findings = [Finding(True, f"found: {describe_location(entry, root)}")]
    findings += _check_checksums(entry, root)
    findings += _check_counts(entry, dataset)
    findings.append(_describe_pixels(dataset))
    found = find_source(entry, root)
    identity = str(found.path.resolve()) if found else "download"
    folder = cache.cache_folder(entry.name, identity)
    problem = cache.find_damage(folder, thorough=True)
    findings.append(Finding(problem is None, problem or f"cached arrays are intact: {folder}"))
    return findings


def _check_checksums(entry: CatalogueEntry, root: Path) -> list[Finding]:
    """Compares the files that are there with the published checksums."""
    found = find_source(entry, root)
    if found is None:
        return []
    path, findings = found.path, []
    for name, published in entry.md5.items():
        file = path if path.name == name else path / name
        if file.is_file():
            good = cache.file_checksum(file, "md5") == published
            findings.append(
                Finding(good, f"{name}: {'as published' if good else 'not as published'}")
            )
    return findings


def _check_counts(entry: CatalogueEntry, dataset: Dataset) -> list[Finding]:
    """Compares the numbers of images per class with the published ones."""
    findings = []
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
        findings.append(Finding(not wrong, summary + (f": {', '.join(wrong)}" if wrong else "")))
    return findings


def _describe_pixels(dataset: Dataset) -> Finding:
    mean, std = channel_statistics(dataset.train_x)
    numbers = [" ".join(f"{value:.4f}" for value in values) for values in (mean, std)]
    shape = "x".join(map(str, dataset.train_x.shape[1:]))
    return Finding(True, f"pixels {shape}, mean {numbers[0]}, standard deviation {numbers[1]}")
