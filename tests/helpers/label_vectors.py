"""Vectors around their labels, and learners taught on them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from isolated_registries import isolate_registries
from torch import Tensor

import onepass
from onepass import Finetune, Learner
from onepass.base.parts import ImageCount, Samples
from onepass.functional.losses import cross_entropy
from onepass.learning.registry import METHODS, method

TASKS = ([0, 1], [2, 3], [4, 5])


@dataclass(kw_only=True, eq=False)
class TrainsAtTaskEnd(Finetune):
    """Trains when a task ends, and counts the images of that and of making a scorer."""

    def on_task_end(self):
        x = torch.ones(4, *self.trainer.shape, dtype=self.trainer.dtype)
        rows = torch.arange(4) % len(self.classes)
        (output,) = self.forward(Samples(x, rows, torch.ones(4)))
        self.descend(cross_entropy(output, among=self.seen))
        self.trainer.count_images("task ends", ImageCount(4, 1))

    def scorer(self):
        self.trainer.count_images("scores", ImageCount(0, 3))
        return super().scorer()


def batch(labels: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)
    return y.view(-1, 1) + torch.randn(len(y), 6, generator=source), y


def teach(learner: Learner, labels: list[int], times: int = 3) -> Learner:
    for seed in range(times):
        learner.learn(*batch(labels, seed))
    return learner


def made(kind: type[Learner], **settings: object) -> Learner:
    return kind(**{"device": "cpu", "seed": 1, **settings})


def reopened(learner: Learner, folder: Path) -> Learner:
    learner.save(folder / "learner.pt")
    return onepass.open(folder / "learner.pt", device="cpu")


def register(monkeypatch: pytest.MonkeyPatch, *learners: type[Learner]) -> None:
    """Registers learners while a test runs, as `test-` and the class name in lower case."""
    isolate_registries(monkeypatch, METHODS)
    for learner in learners:
        monkeypatch.setattr(learner, "key", "", raising=False)
        method(f"test-{learner.__name__.lower()}", paper="none", year=0, boundaries="uses")(learner)
