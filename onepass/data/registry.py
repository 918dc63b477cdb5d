"""The registry of datasets made by functions; datasets with files are in the catalogue."""

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
    """A registered dataset: its name `key`, the function `make` that returns it, and facts that are
    needed before it is made (see `dataset`)."""

    key: str
    make: Callable[..., Dataset]
    classes: int
    tasks: int
    mirror_is_same_class: bool

    def make_validated(self, options: dict[str, Any]) -> Dataset:
        """Returns the dataset made with these options. Raises an InputError if its name, its
        classes or `mirror_is_same_class` are not as registered; with options, the classes may
        differ."""
        made = self.make(**options)
        facts = {"name": self.key, "mirror_is_same_class": self.mirror_is_same_class}
        for fact, registered in (facts if options else {**facts, "classes": self.classes}).items():
            if getattr(made, fact) != registered:
                raise InputError(
                    f"dataset {self.key!r} was registered with {fact} {registered!r}, but it has "
                    f"{getattr(made, fact)!r}"
                )
        return made


DATASETS = Registry[DatasetInfo]("dataset", "onepass.datasets", "onepass.data")


def dataset(
    key: str, *, classes: int, tasks: int = 5, mirror_is_same_class: bool = True
) -> Callable[[Make], Make]:
    """Returns a decorator that registers a function which makes a `Dataset`.

    Parameters
    ----------
    key
        Name of the dataset.
    classes
        Number of classes.
    tasks
        Number of tasks into which a stream splits the classes by default, at most one per class.
    mirror_is_same_class
        Whether the mirror image of an image has the same class.
    """

    def register(make: Make) -> Make:
        info = DatasetInfo(key, make, classes, min(tasks, classes), mirror_is_same_class)
        DATASETS.add(key, info, defined=make)
        return make

    return register
