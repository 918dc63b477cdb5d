"""Files that are whole or absent, and fingerprints of what they hold."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from onepass.errors import CheckpointError, WriteError

FORMAT = "onepass"
VERSION = 1


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes beside the target, flushes to the disk, then renames: a kill at any moment or a full
    disk leaves the file that was there before."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
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


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    buffer = io.BytesIO()  # torch turns a full disk into an error that does not say so
    torch.save({"format": FORMAT, "version": VERSION, **content}, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Tensors and plain values only: a file that asks for code to be run is refused unread."""
    try:
        with zipfile.ZipFile(path) as archive:  # torch itself does not compare the checksums
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path} is damaged: the checksum of {damaged} is wrong")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path} is a folder, not a checkpoint") from None
    except PermissionError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror}") from None
    except Exception:  # whatever a damaged or foreign file leads to
        raise CheckpointError(
            f"{path} is not a whole onepass checkpoint: it is truncated, or another program's file"
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a onepass checkpoint")
    if content.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has checkpoint version {content.get('version')}; this onepass reads {VERSION}"
        )
    return content


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
