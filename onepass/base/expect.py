"""Checks of a saved state before any of it is loaded.

When a learner resumes, its network, optimiser and empty memory exist already. Their own state shows
what a saved state must look like: the same keys, types, shapes and dtypes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onepass.base.errors import CheckpointError, MissingEntryError


def expect_alike(saved: Any, wanted: Any, name: str) -> None:
    """Raises a CheckpointError if `saved` differs from `wanted` in keys, types, shapes or dtypes.

    Values may differ. Dicts are compared entry by entry; the items of a list are not compared.
    `name` is the path of `saved` in the file, for the message.

    >>> expect_alike({"size": torch.zeros(3)}, {"size": torch.zeros(2)}, "store")
    Traceback (most recent call last):
    ...
    onepass.base.errors.CheckpointError: store.size is float32 (3,) where float32 (2,) belongs
    """
    if isinstance(wanted, Tensor):
        _expect_tensor(saved, wanted, name)
    elif type(saved) is not type(wanted):  # isinstance would take True for an int
        raise CheckpointError(f"{name} is {_kind(saved)} where {_kind(wanted)} belongs")
    elif isinstance(wanted, dict):
        expect_keys(saved, wanted, name)
        for key, value in wanted.items():
            expect_alike(saved[key], value, f"{name}.{key}")


def expect_keys(saved: Any, wanted: Any, name: str) -> None:
    """Raises a CheckpointError unless `saved` is a dict with exactly the keys `wanted`, in any
    order; a missing key is a MissingEntryError."""
    expect_kind(saved, dict, name)
    if missing := [key for key in wanted if key not in saved]:
        raise MissingEntryError(f"{name} has no {missing[0]!r}")
    if more := [key for key in saved if key not in wanted]:
        raise CheckpointError(f"{name} has {more[0]!r}, which this learner does not use")


def expect_kind(saved: Any, kind: type, name: str) -> None:
    """Raises a CheckpointError unless `saved` has exactly this type: True is not an int here."""
    if type(saved) is not kind:
        raise CheckpointError(f"{name} is {_kind(saved)} where {kind.__name__} belongs")


def expect_number(saved: Any, low: int, high: int, name: str) -> int:
    """Returns a saved integer, which may be an int or an int64 tensor of shape (). Raises a
    CheckpointError unless it is one and lies in low … high."""
    if isinstance(saved, Tensor):
        _expect_tensor(saved, torch.zeros((), dtype=torch.int64), name)
        saved = int(saved)
    expect_kind(saved, int, name)
    if not low <= saved <= high:
        raise CheckpointError(f"{name} is {saved}, not between {low} and {high}")
    return int(saved)


def expect_rows(saved: Tensor, classes: int, name: str) -> None:
    """Raises a CheckpointError unless `saved` holds only rows of the class head that have a class:
    0 to `classes` - 1."""
    strange = saved[(saved < 0) | (saved >= classes)]
    if len(strange):
        raise CheckpointError(
            f"{name} holds row {int(strange[0])}, but there are only {classes} classes"
        )


def _expect_tensor(saved: Any, wanted: Tensor, name: str) -> None:
    """Raises a CheckpointError unless `saved` is a plain tensor of the same shape and dtype."""
    if type(saved) is not Tensor:
        raise CheckpointError(f"{name} is {_kind(saved)} where {_kind(wanted)} belongs")
    # the shape of a sparse or meta tensor says nothing about its data
    if saved.layout != torch.strided or saved.is_meta or saved.requires_grad:
        raise CheckpointError(
            f"{name} is not a plain tensor: it is sparse, without data, or needs a gradient"
        )
    if (saved.dtype, saved.shape) != (wanted.dtype, wanted.shape):
        raise CheckpointError(f"{name} is {_kind(saved)} where {_kind(wanted)} belongs")


def _kind(value: Any) -> str:
    """Returns a value's type for a message; for a tensor, its dtype and shape."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__
