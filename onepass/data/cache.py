"""The cache of decoded datasets: uint8 arrays on disk, memory-mapped on later loads.

`meta.json` beside the arrays records the fingerprint of the source files, so that a changed source
is decoded again, and a checksum of each array, so that damage is found.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from onepass.base.cache_dir import cache_root
from onepass.base.errors import DataError, WriteError
from onepass.base.fileio import locked_file
from onepass.base.text import printable
from onepass.data.files import Array, Report, Split, Undecoded, decode_class_name

FORMAT = 1  # of meta.json; a cache of another format is rebuilt
ARRAYS = ("train_x", "train_y", "test_x", "test_y")
log = logging.getLogger("onepass")


class CachedArrays(NamedTuple):
    """A cached dataset. Its arrays are memory-mapped: samples are read from the disk on first
    use."""

    class_names: tuple[str, ...]
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def cache_folder(name: str, identity: str) -> Path:
    """Returns the cache folder of a dataset; `identity` distinguishes datasets of the same name. A
    long name is cut, because file systems limit the length of a file name."""
    return cache_root() / f"{name[:50]}-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:12]}"


def cached_arrays(folder: Path, fingerprint: str, read: Callable[[], Undecoded]) -> CachedArrays:
    """Returns the arrays of a dataset from its cache folder. Decodes them by `read` if they are
    missing or damaged, or if the fingerprint of the source has changed."""
    # A folder appears whole, so that a current one is used without the lock: a cache that may only
    # be read (an administrator's, or in a container's image) serves too.
    stamp, found = _stamp(folder), open_cached(folder)
    if found is not None and _read_meta(folder)["fingerprint"] == fingerprint:
        return found
    with _cache_lock(folder):
        if _stamp(folder) != stamp:  # another process has made it meanwhile
            found = open_cached(folder)
            if found is not None and _read_meta(folder)["fingerprint"] == fingerprint:
                return found
        if found is not None:
            log.warning("the files behind %s have changed; decoding them again", folder)
        _build(folder, fingerprint, read())
        built = open_cached(folder)
    if built is None:
        raise DataError(f"{folder} was damaged while it was being written; load the dataset again")
    return built


@contextmanager
def _name_unwritable(path: Path) -> Iterator[None]:
    """Turns an OSError of the body, such as that of a full disk, into a WriteError that names the
    file."""
    try:
        yield
    except OSError as problem:
        raise WriteError(
            f"{path} could not be written: {problem.strerror or problem}; set ONEPASS_CACHE to put "
            "the cache elsewhere"
        ) from None


def open_cached(folder: Path) -> CachedArrays | None:
    """Returns the arrays in a cache folder; None if it is missing, or damaged, which is logged as a
    warning."""
    if not folder.is_dir():
        return None
    if problem := find_damage(folder):
        log.warning("%s; the dataset must be decoded again", problem)
        return None
    try:
        return _map_arrays(folder)
    except Exception as problem:  # a wrong array header or table may raise anything
        log.warning("%s is damaged: %s; the dataset must be decoded again", folder, problem)
        return None


def _map_arrays(folder: Path) -> CachedArrays:
    """Maps the arrays of a cache folder; raises an exception if they do not fit each other."""
    # "c", copy on write, because torch warns about read-only arrays
    mapped = [np.load(folder / f"{name}.npy", mmap_mode="c") for name in ARRAYS]
    arrays = CachedArrays(tuple(_read_meta(folder)["class_names"]), *mapped)
    for x, y in ((arrays.train_x, arrays.train_y), (arrays.test_x, arrays.test_y)):
        images = x.dtype == np.uint8 and x.ndim == 4 and x.shape[1:] == arrays.train_x.shape[1:]
        labels = y.dtype == np.int64 and y.shape == x.shape[:1]
        if not images or not labels or y.min() < 0 or y.max() >= len(arrays.class_names):
            raise ValueError("images, labels and class names do not fit each other")
    return arrays


def find_damage(folder: Path, *, thorough: bool = False) -> str | None:
    """Returns a description of the first damage found in a cache folder, or None. A file's checksum
    is compared only if its time differs from the recorded one, or always if `thorough`."""
    try:
        meta = _read_meta(folder)
        keys = ("size", "written", "sha256")
        recorded = {name: [meta["files"][name][key] for key in keys] for name in ARRAYS}
        _ = meta["fingerprint"], [decode_class_name(name, folder) for name in meta["class_names"]]
    except Exception:  # a file that is not ours may raise anything
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
    """Returns the hexadecimal checksum of a file; `kind` names the algorithm for `hashlib`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _read_meta(folder: Path) -> dict[str, Any]:
    """Returns the content of `meta.json`; raises a ValueError if it has another format."""
    content: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    if content["format"] != FORMAT:
        raise ValueError("another format")
    return content


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Returns what changes whenever the folder is replaced; None if it is missing."""
    with suppress(OSError):
        stat = (folder / "meta.json").stat()
        return stat.st_ino, stat.st_mtime_ns
    return None


@contextmanager
def _cache_lock(folder: Path) -> Iterator[None]:
    """Holds the lock of a cache folder, so that two processes do not decode the same dataset."""
    path = folder.with_name(f".{folder.name}.lock")
    with ExitStack() as opened_files:
        with _name_unwritable(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            opened_files.enter_context(locked_file(path, wait=True))
        yield


def _build(folder: Path, fingerprint: str, undecoded: Undecoded) -> None:
    """Decodes a dataset into a temporary folder, then renames it, so that a kill half-way leaves no
    incomplete cache folder."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with _name_unwritable(partial):
        partial.mkdir()
    try:
        count = len(undecoded.train.labels) + len(undecoded.test.labels)
        with _progress_bar(f"decoding {printable(folder.name)}", count) as report:
            for name, split in (("train", undecoded.train), ("test", undecoded.test)):
                _write_split(partial, name, split, report)
        _write_meta(partial, fingerprint, undecoded)
        shutil.rmtree(folder, ignore_errors=True)
        with _name_unwritable(folder):
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_split(folder: Path, name: str, split: Split, report: Report) -> None:
    """Decodes images straight into a memory-mapped .npy file, because they may be larger than RAM;
    writes the labels beside it."""
    shape = (len(split.labels), *split.shape)
    path = folder / f"{name}_x.npy"
    with _name_unwritable(path):
        with path.open("wb") as file:
            # an .npy file is a header and the raw pixels
            np.lib.format.write_array_header_2_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": shape}
            )
            _reserve_disk_space(file, int(np.prod(shape)))
        images = np.load(path, mmap_mode="r+")
    split.fill(images, report)
    with _name_unwritable(path):
        images.flush()
    with _name_unwritable(folder / f"{name}_y.npy"):
        np.save(folder / f"{name}_y.npy", split.labels)


def _reserve_disk_space(file: IO[bytes], size: int) -> None:
    """Reserves disk space in advance: writing to a mapping on a full disk kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), file.tell(), size)
    else:  # macOS can only set the size
        file.truncate(file.tell() + size)


def _write_meta(folder: Path, fingerprint: str, undecoded: Undecoded) -> None:
    """Writes `meta.json`: the source's fingerprint, the class names, and each array's size, time of
    writing and checksum."""
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
    """Returns a context that gives the function to call with each number of images done. It shows a
    progress bar on standard error if the library rich is installed."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress
    except ImportError:
        return nullcontext(lambda done: None)
    return _show_bar(Progress(console=Console(stderr=True)), escape(what), total)


@contextmanager
def _show_bar(bars: Any, what: str, total: int) -> Iterator[Report]:
    with bars:
        bar = bars.add_task(what, total=total)
        yield lambda done: bars.advance(bar, done)
