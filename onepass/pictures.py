"""Classifying image files with a saved learner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from onepass.errors import InputError
from onepass.files import read_checkpoint
from onepass.saved import from_payload

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


class Prediction(NamedTuple):
    """An image's class, by name where the checkpoint knows names, and its probability."""

    path: str
    label: str
    score: float


class Unreadable(NamedTuple):
    """A file that is no image after all."""

    path: str


def classify(model: Path, source: Path, device: str) -> Iterator[Prediction | Unreadable]:
    """Every image of a folder (or one image), scaled to the size that the learner takes."""
    content = read_checkpoint(model)
    learner = from_payload(content, str(model), device=device)
    shape = content["state"].get("shape", [])
    if len(shape) != 3:
        raise InputError(f"{model} has not learned images, so it cannot classify any")
    names = content.get("class_names")
    for path in _images(source):
        try:
            x = read_image(path, tuple(shape))
        except (UnidentifiedImageError, OSError):
            yield Unreadable(str(path))
            continue
        probabilities = learner.scores(x.unsqueeze(0)).softmax(dim=1)[0]
        label = learner.classes[int(probabilities.argmax())]
        name = names[label] if names else str(label)
        yield Prediction(str(path), name, float(probabilities.max()))


def read_image(path: Path, shape: tuple[int, ...]) -> Tensor:
    channels, height, width = shape
    with Image.open(path) as picture:
        fitted = picture.convert("L" if channels == 1 else "RGB").resize((width, height))
        pixels = torch.from_numpy(np.array(fitted))
    return pixels.view(height, width, -1).permute(2, 0, 1)


def _images(source: Path) -> list[Path]:
    if not source.exists():
        raise InputError(f"there is no {source}")
    if source.is_file():
        return [source]
    found = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise InputError(f"there is no image in {source}")
    return found
