"""Labels and scores from a network that is not touched by them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from onepass.base import inputs
from onepass.base.errors import InputError
from onepass.base.parts import Label
from onepass.learning.class_index import Texts, labels_of

PREDICTION_BATCH = {"cpu": 512, "mps": 512, "cuda": 2048}


@dataclass(frozen=True, eq=False)
class Predictor:
    """What a learner knew at one moment: it predicts, and nothing about it changes.

    `Learner.snapshot` gives one with a network of its own, which any number of threads may use
    while the learner goes on.
    """

    classes: tuple[Label, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    where: torch.device
    normalise: Callable[[Tensor], Tensor]
    scorer: nn.Module
    mirrored: bool = False  # images only: scores are the mean over an image and its mirror image

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"<Predictor: {len(self.classes)} classes, samples of {size}>"

    @torch.no_grad()
    def scores(self, x: Any) -> Tensor:
        """Scores (n, classes), higher for a likelier class; columns as `classes`."""
        samples = inputs.as_samples(x)
        inputs.expect_samples(samples, self.shape, self.dtype)
        scores = self._scores(samples)
        if not _are_scores(scores) and _are_scores(self._scores(torch.zeros_like(samples[:1]))):
            raise InputError("x holds values that are too large: their scores are not finite")
        return scores

    def _scores(self, samples: Tensor) -> Tensor:
        pieces = torch.split(samples, PREDICTION_BATCH[self.where.type])
        found = [self._scores_of(self.normalise(piece.to(self.where))) for piece in pieces]
        return torch.cat(found)[:, : len(self.classes)]

    def _scores_of(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.scorer(inputs)
        return (scores + self.scorer(inputs.flip(3))) / 2 if self.mirrored else scores

    def predict(self, x: Any) -> Tensor | Texts:
        """The label of the highest score, (n): numbers as a tensor, text as an array of NumPy's."""
        return labels_of(self.scores(x).argmax(dim=1), self.classes)

    def on_its_own(self) -> Predictor:
        """With copies of all that it needs: what becomes of the learner no longer matters."""
        return replace(self, scorer=copy.deepcopy(self.scorer).requires_grad_(False))


def _are_scores(values: Tensor) -> bool:
    """Neither infinite nor NaN; minus infinity is the score of what cannot be."""
    return bool((values < torch.inf).all())
