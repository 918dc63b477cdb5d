"""Prediction: labels and scores from a trained network."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from onepass.base import devices, inputs
from onepass.base.errors import InputError
from onepass.base.parts import Label
from onepass.learning.class_index import Texts, labels_of
from onepass.learning.encoding import Sampler

PREDICTION_BATCH = {"cpu": 512, "mps": 512, "cuda": 2048}  # samples in a forward pass, if they are
LARGEST_SAMPLE = 3 * 64 * 64  # at most this large; fewer of larger ones take as much RAM


def prediction_batch(where: torch.device, shape: tuple[int, ...]) -> int:
    """Returns the number of samples of a shape that a forward pass for predictions takes.

    >>> prediction_batch(torch.device("cpu"), (3, 64, 64))
    512
    >>> prediction_batch(torch.device("cpu"), (3, 512, 512))
    8
    """
    most = PREDICTION_BATCH[where.type]
    return max(1, min(most, most * LARGEST_SAMPLE // math.prod(shape)))


@dataclass(frozen=True, eq=False)
class Predictor:
    """A learner's classes and scorer, which predict and do not learn.

    `Learner.snapshot` returns a predictor with its own network. It stays as it is while the learner
    goes on learning, and any number of threads may use it.
    """

    classes: tuple[Label, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    where: torch.device
    normalise: Callable[[Tensor], Tensor]
    scorer: nn.Module
    sampler: Sampler  # from what the user gives to samples
    mirrored: bool = False  # images only: average the scores of an image and its mirror image

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"<Predictor: {len(self.classes)} classes, samples of {size}>"

    @torch.no_grad()
    def scores(self, x: Any) -> Tensor:
        """Returns scores (n, classes), higher for likelier classes, with columns in the order of
        `classes`. Raises an InputError for invalid samples, and for values so large that the scores
        are infinite or NaN."""
        samples = self.sampler(x)
        inputs.expect_samples(samples, self.shape, self.dtype)
        sizes = {"samples": len(samples), devices.SAMPLE: math.prod(self.shape)}
        with devices.naming_large_settings(lambda: sizes), devices.own_precision():
            scores = self._scores(samples)
            # blame the samples only if a sample of zeros scores well, else the network diverged
            too_large = not _all_valid(scores) and _all_valid(
                self._scores(torch.zeros_like(samples[:1]))
            )
        if too_large:
            raise InputError(
                "x holds values that are too large, so that scores are not finite: scale them down"
            )
        return scores

    def _scores(self, samples: Tensor) -> Tensor:
        pieces = torch.split(samples, prediction_batch(self.where, self.shape))
        found = [self._scores_of(self.normalise(piece.to(self.where))) for piece in pieces]
        return torch.cat(found)[:, : len(self.classes)]

    def _scores_of(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.scorer(inputs)
        return (scores + self.scorer(inputs.flip(3))) / 2 if self.mirrored else scores

    def predict(self, x: Any) -> Tensor | Texts:
        """Returns the labels with the highest scores, (n): numbers as a tensor, text as a NumPy
        array."""
        return labels_of(self.scores(x).argmax(dim=1), self.classes)

    def independent_copy(self) -> Predictor:
        """Returns a predictor with its own copy of the scorer, which later learning does not
        change."""
        return replace(self, scorer=copy.deepcopy(self.scorer).requires_grad_(False))


def _all_valid(values: Tensor) -> bool:
    """Returns whether no score is plus infinity or NaN. Minus infinity is valid: it marks an
    impossible class."""
    return bool((values < torch.inf).all())
