"""Writes small datasets in the file formats of the published ones."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

DIGITS = tuple("0123456789")
CIFAR10 = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]  # as in batches.meta
CIFAR100 = [f"fine_{label:02d}" for label in range(100)]
COARSE = [f"coarse_{label:02d}" for label in range(20)]
TINY_FOLDER = "tiny-imagenet-200"


class SplitImages(NamedTuple):
    """Training and test images, uint8 (n, channels, height, width), with their labels."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def noise(classes: int, shape: tuple[int, int, int], train=2, test=1, seed=0) -> SplitImages:
    """Returns images of random pixels, `train` and `test` of each class, in random order."""
    source = np.random.default_rng(seed)

    def part(each: int) -> tuple[np.ndarray, np.ndarray]:
        y = source.permutation(np.repeat(np.arange(classes), each))
        return source.integers(0, 256, (len(y), *shape), dtype=np.uint8), y

    return SplitImages(*part(train), *part(test))


def by_class(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorts samples as folders of classes are read: by class, each in its own order."""
    order = np.argsort(y, kind="stable")
    return x[order], y[order]


# ---- MNIST


def idx_bytes(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_idx(folder: Path, images: SplitImages, *, dot: str = "-", packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, x, y in (
        ("train", images.train_x, images.train_y),
        ("t10k", images.test_x, images.test_y),
    ):
        for kind, values in (("images", x[:, 0]), ("labels", y)):
            name, content = f"{part}-{kind}{dot}idx{values.ndim}-ubyte", idx_bytes(values)
            if packed:
                name, content = f"{name}.gz", gzip.compress(content)
            (folder / name).write_bytes(content)
    return folder


# ---- CIFAR


def python2_pickle(value: Any) -> bytes:
    """Returns a pickle as Python 2 wrote it by protocol 2, with byte strings and NumPy arrays."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        short = len(value) < 256
        return (
            b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))
        ) + value
    if isinstance(value, int):
        return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
    if isinstance(value, dict):
        items = b"".join(_opcodes(entry) for pair in value.items() for entry in pair)
        return b"}(" + items + b"u"
    if isinstance(value, list | tuple):
        start, end = (b"](", b"e") if isinstance(value, list) else (b"(", b"t")
        return start + b"".join(map(_opcodes, value)) + end
    return _array_opcodes(value)


def _array_opcodes(array: np.ndarray) -> bytes:
    kind = {1: b"u1", 8: b"i8"}[array.dtype.itemsize]
    endless = struct.pack("<i", -1)
    order = b"|" if array.dtype.itemsize == 1 else b"<"
    dtype = b"cnumpy\ndtype\n" + _opcodes(kind) + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + _opcodes(order) + b"NNNJ" + endless + b"J" + endless + b"K\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    state = b"(K\x01" + _opcodes(tuple(array.shape)) + dtype + b"\x89" + _opcodes(array.tobytes())
    return empty + state + b"tb"


def write_cifar10(folder: Path, images: SplitImages, names: Sequence[str] = CIFAR10) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pieces = np.array_split(np.arange(len(images.train_y)), 5)
    batches = {
        f"data_batch_{number}": (
            f"training batch {number} of 5",
            images.train_x[i],
            images.train_y[i],
        )
        for number, i in enumerate(pieces, start=1)
    }
    batches["test_batch"] = ("testing batch 1 of 1", images.test_x, images.test_y)
    for file, (label, x, y) in batches.items():
        entries = {
            "batch_label": label,
            "labels": y.tolist(),
            "data": x.reshape(len(x), -1),
            "filenames": [f"{number}.png" for number in range(len(x))],
        }
        (folder / file).write_bytes(python2_pickle(entries))
    meta = {"num_cases_per_batch": 10000, "label_names": list(names), "num_vis": 3072}
    (folder / "batches.meta").write_bytes(python2_pickle(meta))
    return folder


def write_cifar100(folder: Path, images: SplitImages, names: Sequence[str] = CIFAR100) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, x, y in (
        ("train", images.train_x, images.train_y),
        ("test", images.test_x, images.test_y),
    ):
        entries = {
            "filenames": [f"{number}.png" for number in range(len(x))],
            "batch_label": f"{part}ing batch 1 of 1",
            "fine_labels": y.tolist(),
            "coarse_labels": (y // 5).tolist(),
            "data": x.reshape(len(x), -1),
        }
        (folder / part).write_bytes(python2_pickle(entries))
    meta = {"fine_label_names": list(names), "coarse_label_names": COARSE}
    (folder / "meta").write_bytes(python2_pickle(meta))
    return folder


# ---- folders of images


def encode(image: np.ndarray, form: str = "PNG", **options: Any) -> bytes:
    """Returns an image (channels, height, width) as a file's content; one channel is greyscale."""
    file = io.BytesIO()
    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


def exif(orientation: int) -> bytes:
    """Returns EXIF data with this orientation of the camera."""
    notes = Image.Exif()
    notes[0x0112] = orientation
    return notes.tobytes()


def write_classes(folder: Path, x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> Path:
    """Writes `<class>/00000.png`, numbered in the order of the array."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        (folder / names[label] / f"{number:05d}.png").write_bytes(encode(image))
    return folder


def write_folders(
    folder: Path, images: SplitImages, names: Sequence[str], test: str = "test"
) -> Path:
    write_classes(folder / "train", images.train_x, images.train_y, names)
    write_classes(folder / test, images.test_x, images.test_y, names)
    return folder


# ---- TinyImageNet


class Tiny(NamedTuple):
    """A small TinyImageNet.

    It has wnids in the order of wnids.txt, which is not sorted, and for each class the colours of
    its training images and of its validation image. Classes below `grey` are greyscale files.
    """

    wnids: list[str]
    train: np.ndarray
    val: np.ndarray
    grey: int


def tiny(classes: int = 200, grey: int = 3, seed: int = 0) -> Tiny:
    source = np.random.default_rng(seed)
    wnids = [f"n{number:08d}" for number in source.choice(10**7, classes, replace=False)]
    train, val = source.integers(0, 256, (2, classes, 3), dtype=np.uint8)
    train[:grey] = train[:grey, :1]
    val[:grey] = val[:grey, :1]
    return Tiny(wnids, train, val, grey)


def write_tiny(folder: Path, made: Tiny) -> Path:
    """Writes images of one colour, which a JPEG keeps to within a grey level or two."""
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "test" / "images").mkdir(parents=True)
    (folder / "test" / "images" / "test_0.JPEG").write_bytes(_jpeg(made.val[0], grey=False))
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in made.wnids))
    (folder / "words.txt").write_text("".join(f"{wnid}\ta word\n" for wnid in made.wnids))
    for label, wnid in enumerate(made.wnids):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        image = _jpeg(made.train[label], grey=label < made.grey)
        (folder / "train" / wnid / "images" / f"{wnid}_0.JPEG").write_bytes(image)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
    lines = []
    for number, label in enumerate(reversed(range(len(made.wnids)))):
        image = _jpeg(made.val[label], grey=label < made.grey)
        (folder / "val" / "images" / f"val_{number}.JPEG").write_bytes(image)
        lines.append(f"val_{number}.JPEG\t{made.wnids[label]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def _jpeg(colour: np.ndarray, *, grey: bool) -> bytes:
    channels = 1 if grey else 3
    image = np.broadcast_to(colour[:channels, None, None], (channels, 64, 64))
    return encode(np.ascontiguousarray(image), "JPEG", quality=95, subsampling=0)


def zipped(folder: Path, path: Path) -> Path:
    """Packs a folder as published: the folder itself and entries for folders are in the archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted([folder, *folder.rglob("*")]):
            archive.write(file, Path(TINY_FOLDER) / file.relative_to(folder))
    return path


# ---- damage


def truncate(path: Path, keep: float = 0.6) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    return path


def flip_byte(path: Path, place: float = 0.5) -> Path:
    """Inverts all bits of one byte."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 0xFF
    path.write_bytes(content)
    return path
