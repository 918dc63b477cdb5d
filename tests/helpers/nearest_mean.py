"""A method without a network: the nearest class mean, a direct subclass of `Learner`.

Departures: none; there is no paper.
Cost: a sum of each sample. Kept: sums and counts of the classes.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onepass import Learner
from onepass.base import inputs
from onepass.base.expect import expect_alike
from onepass.base.parts import Label, Step
from onepass.learning.class_index import ClassIndex
from onepass.learning.predictor import Predictor


class Means(nn.Module):
    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.register_buffer("means", means)

    def forward(self, x: Tensor) -> Tensor:
        away = x.flatten(1).double()[:, None] - self.means[None]
        return -(away**2).sum(dim=2).float()


@dataclass(kw_only=True, eq=False)
class NearestMean(Learner):
    """Predicts the class with the nearest mean.

    >>> NearestMean(seed=1)
    NearestMean(seed=1)
    """

    _state_keys: ClassVar[tuple[str, ...]] = ("shape", "dtype", "sums", "counts")

    shape: tuple[int, ...] | None = field(init=False, default=None)
    dtype: torch.dtype = field(init=False, default=torch.float32)
    sums: Tensor = field(init=False)
    counts: Tensor = field(init=False)

    @property
    def _prepared(self) -> bool:
        return self.shape is not None

    def _prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.sums = torch.zeros(0, torch.Size(shape).numel(), dtype=torch.float64)
        self.counts = torch.zeros(0, dtype=torch.float64)
        self.shape = shape

    def _unprepare(self) -> None:
        self.shape = None

    def _expect_samples(self, samples: Tensor) -> None:
        if self.shape is not None:
            inputs.expect_samples(samples, self.shape, self.dtype)

    def _learn_batch(self, samples: Tensor, labels: list[Label]) -> Step:
        self._draw_boundary_before(labels)
        self.class_index.enter(labels)
        rows = torch.tensor([self.class_index.row_of[label] for label in labels])
        more = len(self.class_index.labels) - len(self.counts)
        self.sums = torch.cat([self.sums, torch.zeros(more, self.sums.shape[1])])
        self.counts = torch.cat([self.counts, torch.zeros(more)])
        self.sums.index_add_(0, rows, samples.flatten(1).double())
        self.counts.index_add_(0, rows, torch.ones(len(rows), dtype=torch.float64))
        self.steps += 1
        return Step(torch.zeros(()), {}, ())

    def _predictor(self) -> Predictor:
        self._expect_learned()
        assert self.shape is not None
        return Predictor(
            classes=tuple(self.classes),
            shape=self.shape,
            dtype=self.dtype,
            where=torch.device("cpu"),
            normalise=lambda x: x,
            scorer=Means(self.sums / self.counts[:, None]),
            sampler=self.sampler,
        )

    def _own_state(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape or ()),
            "dtype": str(self.dtype).removeprefix("torch."),
            "sums": self.sums.clone(),
            "counts": self.counts.clone(),
        }

    def _restore(self, state: dict[str, Any], book: ClassIndex) -> None:
        self._prepare(tuple(state["shape"]), getattr(torch, state["dtype"]))
        classes = len(book.labels)
        expect_alike(state["counts"], torch.zeros(classes, dtype=torch.float64), "counts")
        expect_alike(
            state["sums"], torch.zeros(classes, self.sums.shape[1], dtype=torch.float64), "sums"
        )
        self.sums, self.counts = state["sums"].clone(), state["counts"].clone()
