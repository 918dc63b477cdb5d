"""Finds the files of a dataset of the catalogue, and the reader for their form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from onepass.data import cifar, folders, idx, tiny_imagenet
from onepass.data.catalogue import CatalogueEntry
from onepass.data.files import Undecoded


class FileForm(NamedTuple):
    """A form in which the files of a dataset come: its name for users, the function that returns
    whether a path holds files of this form, and the function that reads them."""

    form: str
    present: Callable[[Path], bool]
    read: Callable[[Path], Undecoded]


class Source(NamedTuple):
    """A path below the data root, and the reader of the files there."""

    path: Path
    reader: FileForm


def _cifar(name: str) -> tuple[FileForm, FileForm]:
    present, read = partial(cifar.has_cifar_files, name=name), partial(cifar.read_cifar, name=name)
    return FileForm("python batches", present, read), _class_folders(channels=3)


def _class_folders(channels: int) -> FileForm:
    return FileForm(
        "class folders",
        folders.has_class_folders,
        partial(folders.read_class_folders, channels=channels),
    )


READERS = {  # in the order in which they are tried
    "mnist": (FileForm("idx files", idx.has_idx_files, idx.read_idx), _class_folders(channels=1)),
    "cifar10": _cifar("cifar10"),
    "cifar100": _cifar("cifar100"),
    "tiny-imagenet": (
        FileForm(
            "as distributed", tiny_imagenet.has_tiny_imagenet, tiny_imagenet.read_tiny_imagenet
        ),
    ),
}


def find_source(entry: CatalogueEntry, root: Path) -> Source | None:
    """Returns the first path below the root at which a reader of this dataset finds its files, with
    the reader; None if there is none."""
    for path in entry.paths:
        for reader in READERS[entry.name]:
            if reader.present(root / path):
                return Source(root / path, reader)
    return None
