"""Samples as learners take them: raw, or as the features of a frozen encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from onepass.base import inputs
from onepass.base.errors import CheckpointError, InputError
from onepass.base.expect import expect_kind
from onepass.encoders import Encoder
from onepass.functional.grid import STEPS, standardise

Identity = Mapping[str, str | int | bool]  # `Encoder.identity`
LOADED = 4  # encoders that a process keeps loaded


@lru_cache(maxsize=LOADED)
def shared_encoder(name: str, device: str) -> Encoder:
    """Returns the encoder of this name, which all learners of a process share: it is frozen."""
    return Encoder(name, device)


def same_function(one: Identity, other: Identity) -> bool:
    """Returns whether two encoders compute the same function. Without whole numbers they may still
    differ in rounding, in another engine or on another kind of processor."""
    return all(one.get(name) == other.get(name) for name in ("encoder", "sha256", "dimension"))


def expect_same_encoder(saved: Any, name: str, device: str) -> Identity:
    """Returns the saved identity of an encoder. Raises a CheckpointError if it is not that of the
    encoder of this name here."""
    expect_kind(saved, dict, "encoder")
    for entry, value in saved.items():
        if type(entry) is not str or type(value) not in (str, int, bool):
            raise CheckpointError("encoder has entries that are not plain values")
    here, found = shared_encoder(name, device).identity(), dict(saved)
    if not same_function(found, here):
        raise CheckpointError(
            f"it was learned with another encoder of the name {name}: its hash begins with "
            f"{found.get('sha256')!s:.12}, and this one's with {here['sha256']!s:.12}"
        )
    return found


@dataclass(frozen=True)
class Sampler:
    """A function from what the user gives to samples: tensors as they are, or an encoder's
    features.

    With an encoder, an array of floats (n, d) is taken for features that were computed before.
    `standardised` features have mean 0 and variance 1 in each sample, which a network needs.
    """

    encoder: str | None
    device: str
    standardised: bool

    def __call__(self, x: Any) -> Tensor:
        if self.encoder is None:
            return inputs.as_samples(x)
        if _are_vectors(x):
            features = inputs.as_samples(x)
            wanted = shared_encoder(self.encoder, self.device).dimension
            if features.shape[1] != wanted:
                raise InputError(
                    f"x: the encoder {self.encoder} has {wanted} features, not {features.shape[1]}"
                )
        else:
            features = shared_encoder(self.encoder, self.device).encode(x)
        return standardise(features) / STEPS if self.standardised else features


def _are_vectors(x: Any) -> bool:
    """Returns whether x is an array or tensor of floats (n, d)."""
    if isinstance(x, Tensor):
        return x.ndim == 2 and x.is_floating_point()
    return isinstance(x, np.ndarray) and x.ndim == 2 and np.issubdtype(x.dtype, np.floating)
