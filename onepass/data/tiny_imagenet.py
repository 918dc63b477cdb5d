"""Reads TinyImageNet as distributed, a folder or a zip file; its validation images are the test
set."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

from onepass.base.errors import DataError
from onepass.base.text import error_in_one_line
from onepass.data.files import PACKINGS, Split, Undecoded, read_bytes, split_of_files

SHAPE = (3, 64, 64)
LARGEST = 2**26  # bytes of a file in the zip, a thousand times the largest published one
ReadFile = Callable[[str], bytes]


def has_tiny_imagenet(path: Path) -> bool:
    """Returns whether a path is a folder with wnids.txt, or any zip file."""
    return (path / "wnids.txt").is_file() or (path.suffix == ".zip" and path.is_file())


def read_tiny_imagenet(path: Path) -> Undecoded:
    """Returns the images, with classes in the order of wnids.txt, which lists their WordNet IDs
    (wnids). Greyscale files become colour images. Raises a DataError if files are missing or wrong.
    """
    names, content = _open_zip(path) if path.suffix == ".zip" else _open_folder(path)
    classes = _read_rows(path, content, "wnids.txt")
    if len(set(classes)) != len(classes):
        raise DataError(f"{path}: wnids.txt names a class twice")
    label_of = {wnid: label for label, wnid in enumerate(classes)}
    train = [(name, label_of[_class_of(name)]) for name in names if _class_of(name) in label_of]
    if missing := sorted(set(range(len(classes))) - {label for _, label in train}):
        raise DataError(f"{path} has no training images of the class {classes[missing[0]][:100]!r}")
    test = []
    present_names = set(names)
    for row in _read_rows(path, content, "val/val_annotations.txt"):
        columns = row.split("\t")
        if len(columns) < 2:
            raise DataError(f"{path}: val_annotations.txt has a row without tabs: {row[:100]!r}")
        file, wnid = columns[:2]
        name = f"val/images/{file}"
        if name not in present_names:
            raise DataError(f"{path}: val_annotations.txt names {file[:100]!r}, which is missing")
        if wnid not in label_of:
            raise DataError(
                f"{path}: val_annotations.txt names the class {wnid[:100]!r}, not in wnids.txt"
            )
        test.append((name, label_of[wnid]))
    if not test:
        raise DataError(f"{path}: val_annotations.txt names no images")
    train.sort(key=lambda entry: (entry[1], entry[0]))  # a folder or zip has any order
    return Undecoded(
        tuple(classes), *(_image_split(path, images, content) for images in (train, test))
    )


def _image_split(path: Path, images: list[tuple[str, int]], content: ReadFile) -> Split:
    """Returns a split of images, given as pairs (name, label). Errors name an image with the path
    of the dataset."""
    names = [f"{path}/{name}" for name, _ in images]
    labels = [label for _, label in images]
    return split_of_files(names, labels, SHAPE, lambda name: content(name.removeprefix(f"{path}/")))


def _class_of(name: str) -> str:
    """Returns the wnid (class) of a training image from its name; "" for any other file."""
    pieces = name.split("/")
    is_image = len(pieces) == 4 and pieces[0] == "train" and pieces[2] == "images"
    return pieces[1] if is_image and pieces[3].endswith(".JPEG") else ""


def _read_rows(path: Path, content: ReadFile, name: str) -> list[str]:
    """Returns the rows of a text file, without empty ones."""
    try:
        return [row for row in content(name).decode().splitlines() if row.strip()]
    except UnicodeDecodeError:
        raise DataError(f"{path}: {name} is not UTF-8") from None


def _open_folder(path: Path) -> tuple[list[str], ReadFile]:
    """Returns the names of all files in the image folders, and a function that reads a file by
    name. Names are paths in the dataset's folder."""
    folders = [*sorted((path / "train").glob("*/images")), path / "val" / "images"]
    names = [
        f"{folder.relative_to(path).as_posix()}/{entry.name}"
        for folder in folders
        if folder.is_dir()
        for entry in folder.iterdir()
    ]
    return names, lambda name: read_bytes(path / name)


def _open_zip(path: Path) -> tuple[list[str], ReadFile]:
    """Returns the names of all files in a zip file, without its top folder, and a function that
    reads a file by name."""
    try:
        archive = zipfile.ZipFile(path)
    except Exception as problem:  # a damaged zip may raise anything
        raise DataError(
            f"{path} is damaged, or not a zip file: {error_in_one_line(problem)}"
        ) from None
    members = archive.infolist()
    inside = {
        member.filename.split("/", 1)[1]: member for member in members if "/" in member.filename
    }
    lock = threading.Lock()  # the images are decoded by several threads

    def content(name: str) -> bytes:
        if name not in inside:
            raise DataError(f"{path} holds no {name}")
        member = inside[name]
        if member.compress_type not in PACKINGS:
            raise DataError(
                f"{path}: {name} is compressed by another method than deflate: repack it"
            )
        if member.file_size > LARGEST:
            raise DataError(
                f"{path}: {name} unpacks to {member.file_size} bytes, more than {LARGEST}"
            )
        try:
            with lock, archive.open(member) as file:
                return file.read(LARGEST)
        except Exception as problem:  # a damaged member may raise anything
            raise DataError(f"{path}: {name} is damaged: {error_in_one_line(problem)}") from None

    return sorted(inside), content
