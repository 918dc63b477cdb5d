"""CIFAR10 and CIFAR100 as distributed for Python: pickles, read without running any code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onepass.data.files import Array, Split, Undecoded, copied
from onepass.errors import DataError


class Layout(NamedTuple):
    """Names of files and entries."""

    train: list[str]
    test: list[str]
    labels: str
    meta: str
    names: str


LAYOUTS = {
    "cifar10": Layout(
        [f"data_batch_{number}" for number in range(1, 6)],
        ["test_batch"],
        "labels",
        "batches.meta",
        "label_names",
    ),
    "cifar100": Layout(["train"], ["test"], "fine_labels", "meta", "fine_label_names"),
}
ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class ArrayUnpickler(pickle.Unpickler):
    """Admits arrays, bytes, text, lists, dicts and numbers; anything else is refused unrun."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _latin_bytes
        if (module, name) not in ADMITTED:
            raise DataError(f"it asks for {module}.{name}, which is not data")
        return super().find_class(module, name)


def _latin_bytes(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    return text.encode("latin1")


def present(folder: Path, name: str) -> bool:
    return (folder / LAYOUTS[name].train[0]).is_file()


def read(folder: Path, name: str) -> Undecoded:
    layout = LAYOUTS[name]
    names = _entries(folder / layout.meta).get(layout.names)
    if not isinstance(names, list):
        raise DataError(f"{folder / layout.meta} holds no {layout.names}")
    if len(set(names)) != len(names):
        raise DataError(f"{folder / layout.meta} has two classes of one name")
    train, test = (_part(folder, files, layout.labels) for files in (layout.train, layout.test))
    return Undecoded(tuple(names), train, test)


def _part(folder: Path, files: list[str], labels: str) -> Split:
    images, targets = [], []
    for file in files:
        entries = _entries(folder / file)
        try:
            pixels, values = entries["data"], np.asarray(entries[labels], dtype=np.int64)
            images.append(pixels.reshape(-1, 3, 32, 32))
        except (KeyError, AttributeError, ValueError) as problem:
            raise DataError(f"{folder / file} is not a batch of CIFAR images: {problem}") from None
        if pixels.dtype != np.uint8 or len(values) != len(images[-1]):
            raise DataError(f"{folder / file}: {len(values)} labels, {len(images[-1])} images")
        targets.append(values)
    return copied(_joined(images), np.concatenate(targets))


def _joined(images: list[Array]) -> Array:
    return images[0] if len(images) == 1 else np.concatenate(images)


def _entries(path: Path) -> dict[str, Any]:
    """A pickled dict, with text for its keys and names."""
    try:
        content = ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"there is no {path}") from None
    except DataError as problem:
        raise DataError(f"{path} was refused: {problem}") from None
    except Exception as problem:  # whatever a damaged pickle leads to
        raise DataError(f"{path} is not a whole CIFAR file: {problem}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a CIFAR file: it holds no table of entries")
    return {_text(key): _texts(value) for key, value in content.items()}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _texts(value: Any) -> Any:
    return [_text(one) for one in value] if isinstance(value, list) else _text(value)
