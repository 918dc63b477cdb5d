"""Facts about a dataset that follow from its name, without loading it."""

from __future__ import annotations

from onepass.data.catalogue import CATALOGUE, CatalogueEntry
from onepass.data.registry import DATASETS, DatasetInfo

TABLES = (".csv", ".parquet")


def dataset_names() -> list[str]:
    """Returns the names of all datasets: registered ones, then those of the catalogue."""
    return [*DATASETS.names(), *CATALOGUE]


def is_known(name: str) -> bool:
    """Returns whether there is a dataset of this name."""
    return name in CATALOGUE or name in DATASETS


def mirror_is_same_class(name: str) -> bool:
    """Returns whether mirror images have the same class, as the dataset of this name declares; True
    for the user's own files and for an unknown name."""
    entry = _entry_of(name)
    return entry.mirror_is_same_class if entry else True


def usual_tasks(name: str, classes: int | None = None) -> int:
    """Returns the number of tasks that the dataset of this name declares; the catalogue's are those
    of the GSA paper.

    Other data have five tasks, or one per class if they have fewer classes. So has a dataset made
    with another number of `classes` than it declares.

    >>> usual_tasks("cifar100"), usual_tasks("digits"), usual_tasks("mine", classes=3)
    (10, 5, 3)
    """
    entry = _entry_of(name)
    if entry is not None and classes in (None, entry.classes):
        return entry.tasks
    return min(5, classes or 5)  # None: the number of classes is unknown


def _entry_of(name: str) -> CatalogueEntry | DatasetInfo | None:
    """Returns the entry of a dataset; None for the user's own files or an unknown name."""
    if name in CATALOGUE or is_path(name):
        return CATALOGUE.get(name)
    return DATASETS.get(name)


def is_path(name: str) -> bool:
    r"""Returns whether a name is a path: it has a slash of any system or a suffix of data files.

    >>> is_path("photos/"), is_path(r"C:\photos"), is_path("a.csv"), is_path("digits")
    (True, True, True, False)
    """
    files = name.lower().endswith((".npz", *TABLES))
    return bool({"/", "\\"} & set(name)) or files or name in (".", "..")
