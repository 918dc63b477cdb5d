"""A checksum of tensors and plain values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor


def sha256(tree: object) -> str:
    """Returns a checksum of nested dicts, lists, plain values and tensors.

    Keys, dtypes, shapes and bytes count. The order of a dict's keys and the device do not. A tuple
    counts as the list of its items.
    """
    digest = hashlib.sha256()
    _feed(tree, digest.update)
    return digest.hexdigest()


def _feed(tree: object, feed: Callable[[bytes], object]) -> None:
    """Feeds each value with its type and length, so that different trees give different bytes."""
    if isinstance(tree, dict):
        feed(f"dict {len(tree)};".encode())
        for key in sorted(tree, key=repr):  # keys of different types cannot be compared
            _feed(key, feed)
            _feed(tree[key], feed)
    elif isinstance(tree, list | tuple):
        feed(f"list {len(tree)};".encode())
        for value in tree:
            _feed(value, feed)
    elif isinstance(tree, Tensor):
        feed(f"tensor {tree.dtype} {tuple(tree.shape)};".encode())
        # as bytes, because NumPy lacks some dtypes of torch (bfloat16)
        feed(tree.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    else:
        text = repr(tree)
        feed(f"{type(tree).__name__} {len(text)};{text}".encode())
