"""Decoded once, then mapped: uint8 arrays beside a fingerprint of where they came from."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from onepass.base.cache_dir import cache_root
from onepass.base.errors import DataError, WriteError
from onepass.base.fileio import locked_file
from onepass.base.text import printable
from onepass.data.files import Array, Report, Split, Undecoded, decode_class_name

FORMAT = 1
ARRAYS = ("train_x", "train_y", "test_x", "test_y")
log = logging.getLogger("onepass")


class CachedArrays(NamedTuple):
    """The images are mapped from the disk, not read."""

    class_names: tuple[str, ...]
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def cache_folder(name: str, identity: str) -> Path:
    """The folder of one dataset; `identity` tells datasets of one name apart. A name may be as long
    as a folder's may be at all, and ours has an ending."""
    return cache_root() / f"{name[:50]}-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:12]}"


def cached_arrays(folder: Path, fingerprint: str, read: Callable[[], Undecoded]) -> CachedArrays:
    """The arrays of a dataset: mapped if they are there and whole, decoded anew if they are not, or
    if its files have changed since."""
    with _cache_lock(folder):
        found = open_cached(folder)
        if found is not None and _read_meta(folder)["fingerprint"] == fingerprint:
            return found
        if found is not None:
            log.warning("the files behind %s have changed; decoding them again", folder)
        _build(folder, fingerprint, read())
        built = open_cached(folder)
    if built is None:
        raise DataError(f"{folder} was damaged while it was being written")
    return built


@contextmanager
def _name_unwritable(path: Path) -> Iterator[None]:
    """Names the file that could not be written, above all on a full disk."""
    try:
        yield
    except OSError as problem:
        raise WriteError(
            f"{path} could not be written: {problem.strerror or problem}; ONEPASS_CACHE puts the "
            "cache elsewhere"
        ) from None


def open_cached(folder: Path) -> CachedArrays | None:
    """The arrays in a folder, if it holds all of them as they were written."""
    if not folder.is_dir():
        return None
    if problem := find_damage(folder):
        log.warning("%s; decoding it again", problem)
        return None
    try:
        return _map_arrays(folder)
    except Exception as problem:  # whatever a header or a table that fits nothing leads to
        log.warning("%s is damaged: %s; decoding it again", folder, problem)
        return None


def _map_arrays(folder: Path) -> CachedArrays:
    mapped = [np.load(folder / f"{name}.npy", mmap_mode="c") for name in ARRAYS]
    arrays = CachedArrays(tuple(_read_meta(folder)["class_names"]), *mapped)
    for x, y in ((arrays.train_x, arrays.train_y), (arrays.test_x, arrays.test_y)):
        images = x.dtype == np.uint8 and x.ndim == 4 and x.shape[1:] == arrays.train_x.shape[1:]
        labels = y.dtype == np.int64 and y.shape == x.shape[:1]
        if not images or not labels or y.min() < 0 or y.max() >= len(arrays.class_names):
            raise ValueError("images, labels and class names do not fit each other")
    return arrays


def find_damage(folder: Path, *, thorough: bool = False) -> str | None:
    """What is wrong with a cached dataset. Contents are compared if size or time of writing are not
    those recorded, or always if `thorough`."""
    try:
        meta = _read_meta(folder)
        keys = ("size", "written", "sha256")
        recorded = {name: [meta["files"][name][key] for key in keys] for name in ARRAYS}
        _ = meta["fingerprint"], [decode_class_name(name, folder) for name in meta["class_names"]]
    except Exception:  # whatever a file that is not ours leads to
        return f"{folder / 'meta.json'} is missing or damaged"
    for name, (size, written, digest) in recorded.items():
        path = folder / f"{name}.npy"
        if not path.is_file():
            return f"{path} is missing"
        stat = path.stat()
        if stat.st_size != size:
            return f"{path} is damaged: {stat.st_size} bytes instead of {size}"
        if (thorough or stat.st_mtime_ns != written) and file_checksum(path) != digest:
            return f"{path} is damaged: its checksum is not the one recorded"
    return None


def file_checksum(path: Path, kind: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _read_meta(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    if content["format"] != FORMAT:
        raise ValueError("another format")
    return content


@contextmanager
def _cache_lock(folder: Path) -> Iterator[None]:
    """Two processes that want the same dataset decode it once."""
    path = folder.with_name(f".{folder.name}.lock")
    with ExitStack() as opened_files:
        with _name_unwritable(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            opened_files.enter_context(locked_file(path, wait=True))
        yield


def _build(folder: Path, fingerprint: str, undecoded: Undecoded) -> None:
    """In a folder beside, renamed when whole: a kill half-way leaves nothing that counts."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with _name_unwritable(partial):
        partial.mkdir()
    try:
        count = len(undecoded.train.labels) + len(undecoded.test.labels)
        with _progress_bar(f"decoding {printable(folder.name)}", count) as report:
            for name, part in (("train", undecoded.train), ("test", undecoded.test)):
                _write_split(partial, name, part, report)
        _write_meta(partial, fingerprint, undecoded)
        shutil.rmtree(folder, ignore_errors=True)
        with _name_unwritable(folder):
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_split(folder: Path, name: str, part: Split, report: Report) -> None:
    shape = (len(part.labels), *part.shape)
    path = folder / f"{name}_x.npy"
    with _name_unwritable(path):
        with path.open("wb") as file:
            np.lib.format.write_array_header_2_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": shape}
            )
            _reserve_disk_space(file, int(np.prod(shape)))
        images = np.load(path, mmap_mode="r+")
    part.fill(images, report)
    with _name_unwritable(path):
        images.flush()
    with _name_unwritable(folder / f"{name}_y.npy"):
        np.save(folder / f"{name}_y.npy", part.labels)


def _reserve_disk_space(file: IO[bytes], size: int) -> None:
    """Takes the room on the disk now: a mapping on a full disk could only crash."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), file.tell(), size)
    else:  # macOS
        file.truncate(file.tell() + size)


def _write_meta(folder: Path, fingerprint: str, undecoded: Undecoded) -> None:
    files = {}
    for name in ARRAYS:
        path = folder / f"{name}.npy"
        stat = path.stat()
        files[name] = {
            "size": stat.st_size,
            "written": stat.st_mtime_ns,
            "sha256": file_checksum(path),
        }
    meta = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "class_names": list(undecoded.class_names),
        "files": files,
    }
    with _name_unwritable(folder / "meta.json"):
        (folder / "meta.json").write_text(json.dumps(meta, indent=2))


def _progress_bar(what: str, total: int) -> Any:
    """A bar on standard error; without rich, none."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress
    except ImportError:
        return nullcontext(lambda done: None)
    return _advance_bar(Progress(console=Console(stderr=True)), escape(what), total)


@contextmanager
def _advance_bar(bars: Any, what: str, total: int) -> Iterator[Report]:
    with bars:
        bar = bars.add_task(what, total=total)
        yield lambda done: bars.advance(bar, done)
