"""TinyImageNet as distributed: a folder or zip; its validation part is the test set."""

from __future__ import annotations

import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from onepass.data.files import Undecoded, decoded
from onepass.errors import DataError

SHAPE = (3, 64, 64)
Read = Callable[[str], bytes]


def present(path: Path) -> bool:
    return (path / "wnids.txt").is_file() or (path.suffix == ".zip" and path.is_file())


def read(path: Path) -> Undecoded:
    """Classes in the order of wnids.txt; greyscale files become colour images."""
    names, content = _zip(path) if path.suffix == ".zip" else _folder(path)
    classes = _lines(content, "wnids.txt")
    if len(set(classes)) != len(classes):
        raise DataError(f"{path}: wnids.txt names a class twice")
    label_of = {wnid: label for label, wnid in enumerate(classes)}
    train = [(name, label_of[_class(name)]) for name in names if _class(name) in label_of]
    if missing := sorted(set(range(len(classes))) - {label for _, label in train}):
        raise DataError(f"{path} has no training images of the class {classes[missing[0]]!r}")
    test = []
    present_names = set(names)
    for line in _lines(content, "val/val_annotations.txt"):
        columns = line.split("\t")
        if len(columns) < 2:
            raise DataError(f"{path}: val_annotations.txt has a line without columns: {line!r}")
        file, wnid = columns[:2]
        name = f"val/images/{file}"
        if name not in present_names:
            raise DataError(f"{path}: val_annotations.txt names {file}, which is not there")
        if wnid not in label_of:
            raise DataError(
                f"{path}: val_annotations.txt names the class {wnid!r}, not in wnids.txt"
            )
        test.append((name, label_of[wnid]))
    if not test:
        raise DataError(f"{path}: val_annotations.txt names no images")
    train.sort(key=lambda entry: (entry[1], entry[0]))
    splits = [decoded([n for n, _ in p], [y for _, y in p], SHAPE, content) for p in (train, test)]
    return Undecoded(tuple(classes), *splits)


def _class(name: str) -> str:
    """The wnid of a training image's path, or nothing for another file."""
    pieces = name.split("/")
    is_image = len(pieces) == 4 and pieces[0] == "train" and pieces[2] == "images"
    return pieces[1] if is_image and pieces[3].endswith(".JPEG") else ""


def _lines(content: Read, name: str) -> list[str]:
    return [line for line in content(name).decode().splitlines() if line.strip()]


def _folder(path: Path) -> tuple[list[str], Read]:
    def content(name: str) -> bytes:
        try:
            return (path / name).read_bytes()
        except FileNotFoundError:
            raise DataError(f"there is no {path / name}") from None

    folders = [*sorted((path / "train").glob("*/images")), path / "val" / "images"]
    names = [
        f"{folder.relative_to(path).as_posix()}/{entry.name}"
        for folder in folders
        if folder.is_dir()
        for entry in folder.iterdir()
    ]
    return names, content


def _zip(path: Path) -> tuple[list[str], Read]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as problem:
        raise DataError(f"{path} is not a whole zip file: {problem}") from None
    inside = {name.split("/", 1)[1]: name for name in archive.namelist() if "/" in name}
    lock = threading.Lock()

    def content(name: str) -> bytes:
        try:
            with lock:
                return archive.read(inside[name])
        except KeyError:
            raise DataError(f"{path} holds no {name}") from None
        except (zipfile.BadZipFile, zlib.error, RuntimeError) as problem:
            raise DataError(f"{path}: {name} is damaged: {problem}") from None

    return sorted(inside), content
