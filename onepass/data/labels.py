"""Labels as people have them, as the numbers 0 … C-1 of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from onepass.base.parts import Label

L = TypeVar("L", int, str, int | str)


def sorted_classes(labels: Iterable[L]) -> list[L]:
    """The different ones, sorted; text that is all numbers as numbers.

    >>> sorted_classes([7, -1, 7]), sorted_classes(["b", "a"]), sorted_classes(["10", "9"])
    ([-1, 7], ['a', 'b'], ['9', '10'])
    """
    found = set(labels)
    numbers = all(isinstance(one, int) or _is_number(one) for one in found)
    return sorted(found, key=lambda one: (int(one) if numbers else 0, str(one)))


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 1000  # Python reads no number of many thousand digits


def class_numbers(labels: Sequence[Label], classes: Sequence[Label]) -> Tensor:
    """The place of each label among the classes.

    >>> class_numbers(["dog", "cat", "dog"], ["cat", "dog"])
    tensor([1, 0, 1])
    """
    import torch

    place = {label: number for number, label in enumerate(classes)}
    return torch.tensor([place[label] for label in labels], dtype=torch.int64)
