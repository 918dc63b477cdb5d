"""Files that are whole or absent, and fingerprints of what they hold."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from onepass.errors import WriteError


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes beside the target, flushes to the disk, then renames: a kill at any moment or a full
    disk leaves the file that was there before."""
    writer = f"{os.getpid()}.{threading.get_ident()}"
    partial = path.with_name(f".{path.name}.{writer}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as problem:
        partial.unlink(missing_ok=True)
        raise WriteError(f"{path} could not be written: {problem.strerror}") from None
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: object) -> None:
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def sha256(tree: object) -> str:
    """A fingerprint of nested dicts, lists, plain values and tensors (names, dtypes, bytes)."""
    digest = hashlib.sha256()
    _feed(tree, digest.update)
    return digest.hexdigest()


def _feed(tree: object, feed: Callable[[bytes], object]) -> None:
    """Each piece with its kind and length, so that no two trees give the same bytes."""
    if isinstance(tree, dict):
        feed(f"dict {len(tree)};".encode())
        for key in sorted(tree, key=repr):
            _feed(key, feed)
            _feed(tree[key], feed)
    elif isinstance(tree, list | tuple):
        feed(f"list {len(tree)};".encode())
        for value in tree:
            _feed(value, feed)
    elif isinstance(tree, Tensor):
        feed(f"tensor {tree.dtype} {tuple(tree.shape)};".encode())
        feed(tree.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    else:
        text = repr(tree)
        feed(f"{type(tree).__name__} {len(text)};{text}".encode())
