"""What is known of a dataset by its name, without loading it."""

from __future__ import annotations

from onepass.data.catalogue import CATALOGUE, CatalogueEntry
from onepass.data.registry import DATASETS, DatasetInfo

TABLES = (".csv", ".parquet")


def names() -> list[str]:
    return [*DATASETS.names(), *CATALOGUE]


def is_known(name: str) -> bool:
    """Whether a dataset has that name."""
    return name in CATALOGUE or name in DATASETS


def mirror_is_same_class(name: str) -> bool:
    """What the dataset of that name says, without loading it; your own files, unless told."""
    entry = _facts(name)
    return entry.mirror_is_same_class if entry else True


def usual_tasks(name: str, classes: int | None = None) -> int:
    """Into how many tasks the paper splits the dataset of that name; five for any other, if it has
    the classes.

    >>> usual_tasks("cifar100"), usual_tasks("digits"), usual_tasks("mine", classes=3)
    (10, 5, 3)
    """
    entry = _facts(name)
    if entry is not None and classes in (None, entry.classes):
        return entry.tasks
    return min(5, classes or 5)


def _facts(name: str) -> CatalogueEntry | DatasetInfo | None:
    """What is known of a dataset without loading it; of the user's own files, nothing."""
    if name in CATALOGUE or is_path(name):
        return CATALOGUE.get(name)
    return DATASETS.get(name)


def is_path(name: str) -> bool:
    r"""Whether it names files, with the slashes of whatever system.

    >>> is_path("photos/"), is_path(r"C:\photos"), is_path("a.csv"), is_path("digits")
    (True, True, True, False)
    """
    files = name.lower().endswith((".npz", *TABLES))
    return bool({"/", "\\"} & set(name)) or files or name in (".", "..")
