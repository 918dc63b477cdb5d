"""Classifying image files with a saved learner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from onepass.base.errors import DataError, InputError
from onepass.data.files import contents, decode, reading
from onepass.data.folders import SUFFIXES
from onepass.learning.checkpoint.file import read, restored_to_predict


class Prediction(NamedTuple):
    """What an image's class is called, and its probability."""

    path: str
    label: str
    score: float


class Unreadable(NamedTuple):
    """A file that is no image after all, and why, in a sentence that names it."""

    path: str
    problem: str


def classify(model: Path, images: Path, device: str) -> Iterator[Prediction | Unreadable]:
    """Yields what every image of a folder (or one image) is, scaled to the learner's size."""
    content = read(model)
    learner = restored_to_predict(content, str(model), device=device)
    shape = content["state"].get("shape", [])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(
            f"{model} has not learned grey or colour images, and a folder has no "
            "others: use onepass.open and predict"
        )
    if content["state"]["dtype"] != "uint8":
        raise InputError(
            f"{model} has learned float images, of which a file does not say how they were made: "
            "use onepass.open and predict"
        )
    names = learner.class_names
    channels, height, width = shape
    for path in _images(images):
        try:
            pixels = decode(contents(path), str(path), (channels, height, width), resize=True)
        except DataError as problem:
            yield Unreadable(str(path), str(problem))
            continue
        probabilities = learner.scores(pixels[None]).softmax(dim=1)[0]
        name = names[int(probabilities.argmax())]
        yield Prediction(str(path), name, float(probabilities.max()))


def _images(images: Path) -> list[Path]:
    with reading(images):
        images.stat()
    if not images.is_dir():
        return [images]
    found = sorted(
        path
        for path in images.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    if files := [path for path in found if not path.is_dir()]:
        return files
    raise InputError(f"there is no image in {images}")
