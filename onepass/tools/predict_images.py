"""Classifying image files with a saved learner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from onepass.base.errors import DataError, InputError, RunError
from onepass.data.files import contents, decode, reading
from onepass.data.folders import SUFFIXES
from onepass.learning.checkpoint.file import read, restored_to_predict
from onepass.runs.folder import RunFolder
from onepass.unlike import Doubt, Doubts


class Prediction(NamedTuple):
    """What an image's class is called, and its probability."""

    path: str
    label: str
    score: float


class Unreadable(NamedTuple):
    """A file that is no image after all, and why, in a sentence that names it."""

    path: str
    problem: str


def classify(model: Path, images: Path, device: str) -> Iterator[Prediction | Unreadable | Doubt]:
    """Every image of a folder (or one image), scaled to the size that the learner takes; then what
    there is to doubt about them."""
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
    doubts = Doubts(learner, scaled=_were_scaled(model))
    for path in _images(images):
        try:
            file = contents(path)
            pixels = decode(file, str(path), (channels, height, width), resize=True)
        except DataError as problem:
            yield Unreadable(str(path), str(problem))
            continue
        doubts.look(file, str(path), pixels)
        probabilities = learner.scores(pixels[None]).softmax(dim=1)[0]
        name = names[int(probabilities.argmax())]
        yield Prediction(str(path), name, float(probabilities.max()))
    yield from doubts.told()


def _were_scaled(model: Path) -> bool:
    """Whether the model is a run's, and that run has scaled its images."""
    with suppress(RunError, OSError):
        run = RunFolder(model.parent).description() or {}
        return "image_size=" in str(run.get("variant"))
    return False


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
