"""Converts users' labels to the numbers 0 … C-1 of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from onepass.base.parts import Label

L = TypeVar("L", int, str, int | str)


def sorted_classes(labels: Iterable[L]) -> list[L]:
    """Returns the different labels, sorted: in numerical order if all are whole numbers or digits,
    else as text.

    >>> sorted_classes([7, -1, 7]), sorted_classes(["b", "a"]), sorted_classes(["10", "9"])
    ([-1, 7], ['a', 'b'], ['9', '10'])
    """
    found = set(labels)
    numbers = all(isinstance(label, int) or _is_number(label) for label in found)
    # the text orders labels of the same number ("1" and "01")
    return sorted(found, key=lambda label: (int(label) if numbers else 0, str(label)))


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 1000  # int() refuses more than 4300 digits


def class_numbers(labels: Sequence[Label], classes: Sequence[Label]) -> Tensor:
    """Returns the index of each label in the list of classes.

    >>> class_numbers(["dog", "cat", "dog"], ["cat", "dog"])
    tensor([1, 0, 1])
    """
    import torch

    number_of = {label: number for number, label in enumerate(classes)}
    return torch.tensor([number_of[label] for label in labels], dtype=torch.int64)
