"""Datasets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from onepass.data.base import Dataset
from onepass.data.digits import digits
from onepass.data.synthetic import synthetic
from onepass.errors import UnknownNameError

DATASETS: dict[str, Callable[..., Dataset]] = {"digits": digits, "synthetic": synthetic}


def load(name: str, **options: Any) -> Dataset:
    """The dataset of that name.

    >>> load("digits").train_x.shape
    torch.Size([1442, 1, 8, 8])
    >>> load("digit")
    Traceback (most recent call last):
    ...
    onepass.errors.UnknownNameError: unknown dataset 'digit'. Did you mean 'digits'? Valid: \
digits, synthetic.
    """
    if name not in DATASETS:
        raise UnknownNameError("dataset", name, DATASETS)
    loader = DATASETS[name]
    for key in options:
        if key not in inspect.signature(loader).parameters:
            raise UnknownNameError(
                f"option of dataset {name!r}", key, inspect.signature(loader).parameters
            )
    return loader(**options)


__all__ = ["DATASETS", "Dataset", "load"]
