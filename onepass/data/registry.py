"""Datasets by name that are made by a function; those that have files are in the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from onepass.base.errors import InputError
from onepass.base.registry import Registry

if TYPE_CHECKING:
    from onepass.data.base import Dataset

Make = TypeVar("Make", bound="Callable[..., Dataset]")


@dataclass(frozen=True)
class DatasetInfo:
    """How a dataset is made, and what has to be known of it before it is; see `dataset`."""

    key: str
    make: Callable[..., Dataset]
    classes: int
    tasks: int
    mirror_is_same_class: bool

    def make_validated(self, options: dict[str, Any]) -> Dataset:
        """The dataset, which must be what was said of it; options may change how many classes."""
        found = self.make(**options)
        told = {"name": self.key, "mirror_is_same_class": self.mirror_is_same_class}
        for fact, said in (told if options else {**told, "classes": self.classes}).items():
            if getattr(found, fact) != said:
                raise InputError(
                    f"dataset {self.key!r} was registered with {fact} {said!r}, but it has "
                    f"{getattr(found, fact)!r}"
                )
        return found


DATASETS = Registry[DatasetInfo]("dataset", "onepass.datasets", "onepass.data")


def dataset(
    key: str, *, classes: int, tasks: int = 5, mirror_is_same_class: bool = True
) -> Callable[[Make], Make]:
    """Registers a function that makes a `Dataset` of that name.

    Parameters
    ----------
    classes
        How many it has.
    tasks
        Into how many a stream cuts it, if nobody says.
    mirror_is_same_class
        Whether the mirror image of an image is one of the same class.
    """

    def register(make: Make) -> Make:
        info = DatasetInfo(key, make, classes, min(tasks, classes), mirror_is_same_class)
        DATASETS.add(key, info, defined=make)
        return make

    return register
