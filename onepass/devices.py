"""Where to compute."""

from __future__ import annotations

import torch

from onepass.errors import InputError


def resolve(name: str) -> torch.device:
    """`auto` is the GPU where there is one; a GPU that is not there is an error.

    >>> resolve("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' is not there: torch sees no GPU; use cpu or auto")
    if name not in ("cpu", "cuda"):
        raise InputError(f"device must be auto, cpu or cuda, not {name!r}")
    return torch.device(name)
