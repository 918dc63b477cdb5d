"""Images that cannot be like those that a learner has learned from, however sure it is of them.

They are classified all the same, as somebody may have asked for just that; but it is said.
"""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from onepass.data.base import statistics
from onepass.data.files import Array, decode, opened
from onepass.learning.learner import Learner

GREY = ("1", "L", "LA", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # modes without colours
TINGE = 2.0  # levels of 255 between channels that make no colour
FAR = 0.8  # between two means of pixels, in standard deviations
OTHER_SPREAD = 4.0  # between two standard deviations, as a factor


class Doubt(NamedTuple):
    """What is unlike all that was learned, in a sentence."""

    problem: str


class Doubts:
    """Looks at the images that are classified, and tells in the end what is wrong with them.

    `scaled`: the learner's own images were scaled to its size too, so that any size will do.
    """

    def __init__(self, learner: Learner, *, scaled: bool) -> None:
        self.channels, self.height, self.width = learner.trainer.shape
        self.scaled = scaled
        self.learned = _samples(learner)
        self.learned_colours = _colours(learner, self.learned)
        self.usual = _usual(learner, self.learned)
        self.images = self.of_another_size = self.of_other_colours = 0
        self.sums = np.zeros((2, self.channels))  # of values, and of their squares

    def look(self, content: bytes, name: str, pixels: Array) -> None:
        """At an image file, and at its pixels as the learner is given them."""
        with opened(io.BytesIO(content), name) as picture:
            mode, sides = picture.mode, set(picture.size)  # which EXIF data may turn
        self.images += 1
        self.of_another_size += sides != {self.height, self.width}
        seen = pixels
        if self.channels == 1 and mode not in GREY:
            seen = decode(content, name, (3, self.height, self.width), resize=True)
        if self.learned_colours is not None:
            self.of_other_colours += _has_colours(torch.tensor(seen)) != self.learned_colours
        values = pixels / 255
        self.sums += [values.mean(axis=(1, 2)), (values**2).mean(axis=(1, 2))]

    def told(self) -> list[Doubt]:
        doubts = []
        if self.of_another_size and not self.scaled:
            what = f"not {self.width}x{self.height} pixels, as those that the model has learned"
            doubts.append(self._some(self.of_another_size, f"{what} from: they were scaled"))
        if self.of_other_colours:
            seen, learned = ("grey", "coloured") if self.learned_colours else ("coloured", "grey")
            what = f"{seen}, and the model has learned from {learned} ones"
            doubts.append(self._some(self.of_other_colours, what))
        if self.images and self.usual is not None and self._are_far():
            doubts.append(Doubt(self._range()))
        return doubts

    def _some(self, count: int, what: str) -> Doubt:
        return Doubt(f"{count} of {self.images} images are {what}")

    @property
    def _found(self) -> tuple[Array, Array]:
        """Mean and standard deviation per channel."""
        mean, square = self.sums / self.images
        return mean, np.sqrt(np.maximum(square - mean**2, 0))

    def _are_far(self) -> bool:
        assert self.usual is not None
        (mean, std), (usual_mean, usual_std) = self._found, self.usual
        far = FAR * (1 + 1 / self.images)  # the mean of one image says little
        away = np.abs(mean - usual_mean) > far * usual_std
        wider = (std > OTHER_SPREAD * usual_std) | (OTHER_SPREAD * std < usual_std)
        return bool(away.all() or wider.all())

    def _range(self) -> str:
        assert self.usual is not None
        found, usual = (
            f"{255 * mean.mean():.0f} ± {255 * std.mean():.0f}"
            for mean, std in (self._found, self.usual)
        )
        return (
            f"the pixels of these images are {found}, and those that the model has learned from "
            f"{usual}: they have another range, or black and white are exchanged"
        )


def _samples(learner: Learner) -> Tensor | None:
    """What the memories hold of the images that were learned."""
    held = [store.x[: int(store.size)].cpu() for store in learner.stores.values()]
    found = torch.cat(held) if held else torch.empty(0)
    return found if len(found) else None


def _colours(learner: Learner, samples: Tensor | None) -> bool | None:
    """Whether the learner has learned from coloured images, if that can be told."""
    if learner.trainer.shape[0] == 1:
        return False
    if samples is not None:
        return _has_colours(samples)
    return True if learner.mean is not None and len(set(learner.mean)) > 1 else None


def _has_colours(images: Tensor) -> bool:
    """Whether channels differ by more than a scanner's grey, in images (..., channels, h, w)."""
    away = (images.float() - images[..., :1, :, :]).abs()
    return bool(away.mean() > TINGE)


def _usual(learner: Learner, samples: Tensor | None) -> tuple[Array, Array] | None:
    """Mean and standard deviation per channel, of the samples or as the learner was told."""
    mean, std = (learner.mean, learner.std) if samples is None else statistics(samples)
    return None if mean is None or std is None else (np.array(mean), np.array(std))
