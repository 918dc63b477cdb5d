"""Classifies image files with a saved learner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from onepass.base.errors import DataError, InputError
from onepass.data.files import Array, decode_image, name_unreadable, read_bytes
from onepass.data.folders import SUFFIXES
from onepass.learning.checkpoint.file import learner_for_predicting, read_checkpoint
from onepass.learning.encoding import shared_encoder
from onepass.learning.learner import Learner

BATCH = 64  # images per forward pass


class Prediction(NamedTuple):
    """The predicted class of an image, and its softmax probability."""

    path: str
    label: str
    score: float


class UnreadableImage(NamedTuple):
    """A file that cannot be decoded; `problem` is a sentence that names the file and the reason."""

    path: str
    problem: str


def classify(model: Path, images: Path, device: str) -> Iterator[Prediction | UnreadableImage]:
    """Yields an entry for each image file in a folder and below, or for a single image file.

    Images are scaled to the size that the learner was trained on. Raises InputError if the learner
    was not trained on grey or colour images of eight bits, or if the folder has no image.
    """
    content = read_checkpoint(model)
    learner = learner_for_predicting(content, str(model), device=device)
    if learner.encoder is not None:
        yield from _classify_encoded(learner, learner.encoder, images)
        return
    shape = content["state"].get("shape", [])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(
            f"{model} has not learned grey or colour images, so image files do not fit it: use "
            "onepass.open and predict"
        )
    if content["state"]["dtype"] != "uint8":
        raise InputError(
            f"{model} has learned float images, and it does not record how they were made from "
            "pixels: use onepass.open and predict"
        )
    paths = _image_paths(images)
    for start in range(0, len(paths), BATCH):
        yield from _classify_batch(learner, paths[start : start + BATCH], tuple(shape))


def _classify_encoded(
    learner: Learner, name: str, images: Path
) -> Iterator[Prediction | UnreadableImage]:
    """Yields an entry for each image file, whose features an encoder makes."""
    encoder = shared_encoder(name, learner.device)
    if encoder.takes != "images":
        raise InputError(f"{name} takes {encoder.takes}, not image files: use onepass.open")
    paths = list(map(str, _image_paths(images)))
    for start in range(0, len(paths), BATCH):
        batch = paths[start : start + BATCH]
        damaged: list[tuple[int, DataError]] = []
        features = encoder.encode(batch, damaged=damaged)
        problems = {index: UnreadableImage(batch[index], str(why)) for index, why in damaged}
        answers = iter(_best_classes(learner, features) if len(features) else ())
        for index, path in enumerate(batch):
            yield problems.get(index) or Prediction(path, *next(answers))


def _best_classes(learner: Learner, samples: Tensor | Array) -> list[tuple[str, float]]:
    """Returns the name of the likeliest class of each sample, and its softmax probability."""
    names = learner.class_names
    best = learner.scores(samples).softmax(dim=1).max(dim=1)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(names[row], score) for row, score in rows]


def _classify_batch(
    learner: Learner, paths: list[Path], shape: tuple[int, int, int]
) -> list[Prediction | UnreadableImage]:
    """Returns a prediction for each file, from one forward pass, in the order of `paths`."""
    entries: dict[Path, Prediction | UnreadableImage] = {}
    images: dict[Path, Array] = {}
    for path in paths:
        try:
            images[path] = decode_image(read_bytes(path), str(path), shape, resize=True)
        except DataError as problem:
            entries[path] = UnreadableImage(str(path), str(problem))
    if images:
        answers = _best_classes(learner, np.stack(list(images.values())))
        entries |= {
            path: Prediction(str(path), *answer)
            for path, answer in zip(images, answers, strict=True)
        }
    return [entries[path] for path in paths]


def _image_paths(images: Path) -> list[Path]:
    """Returns the file, or the sorted image files below the folder, without hidden ones.

    Image files are recognised by their suffix. Raises InputError if the folder has none.
    """
    with name_unreadable(images):
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
    raise InputError(f"there is no image file (.png, .jpg, ...) in {images}")
