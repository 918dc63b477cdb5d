"""Tiny networks and learners, streams of vectors from lists of labels, and a naive cross-entropy.

The tests of methods share them.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.base.parts import Output, Samples
from onepass.nets import Head

BOUNDARY = "boundary"


class Magnify(nn.Module):
    """Features that are the inputs times a constant."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class Trained(nn.Module):
    """Features that are the flattened inputs times a trained number."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x.flatten(1)


class WithBatchNorm(nn.Module):
    """A network on which joint and separate forward passes differ."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.layer(x)))


def with_batchnorm() -> WithBatchNorm:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return WithBatchNorm()


class NormOnly(nn.Module):
    """BatchNorm alone: its running statistics show which inputs passed through."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def small(kind: type, **settings: object):
    """Returns a learner whose steps can be followed by hand: plain SGD, no augmentation."""
    defaults = {
        "net": Magnify(),
        "memory": 30,
        "replay": 12,
        "mix": 12,
        "optimizer": "sgd",
        "lr": 0.5,
        "weight_decay": 0.0,
        "augment": "none",
        "device": "cpu",
        "seed": 5,
    }
    known = {field.name for field in fields(kind)}
    return kind(**{name: defaults[name] for name in defaults if name in known} | settings)


def corners(labels: list[int], source: torch.Generator, apart: float = 1) -> tuple[Tensor, Tensor]:
    """Returns vectors around one corner per class, and the labels."""
    y = torch.tensor(labels)
    return torch.randn(len(y), 6, generator=source) + apart * F.one_hot(y % 6, 6), y


def random_batches(
    count: int, size: int = 10, classes: int = 4, apart: float = 1
) -> list[tuple[Tensor, Tensor]]:
    """Returns batches of random classes, each from its own seed."""
    source = torch.Generator().manual_seed(99)
    labels = torch.randint(classes, (count, size), generator=source).tolist()
    return [
        corners(entry, torch.Generator().manual_seed(seed), apart)
        for seed, entry in enumerate(labels)
    ]


def batches(labels: list, seed: int = 0) -> Iterator:
    """Yields the boundaries and the batches of vectors of a stream, given by its labels."""
    source = torch.Generator().manual_seed(seed)
    for item in labels:
        yield item if item == BOUNDARY else corners(item, source)


def as_images(items: Iterator) -> Iterator:
    for item in items:
        if item == BOUNDARY:
            yield item
        else:
            yield (40 * (item[0].clamp(-3, 3) + 3)).to(torch.uint8).view(-1, 1, 2, 3), item[1]


@contextmanager
def kept_logits() -> Iterator[list[Tensor]]:
    """Yields a list that collects the logits of every training forward, with their gradients."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, _: object, logits: Tensor) -> None:
        if isinstance(module, Head) and logits.requires_grad:
            logits.retain_grad()
            kept.append(logits)

    handle = nn.modules.module.register_module_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def on_every_forward(learner, hook: Callable[[nn.Module, tuple, Tensor], None]) -> None:
    """Hooks the backbones of the network that trains and of its copy for evaluation."""
    for net in (learner.model, learner.trainer.eval_model):
        net.body.register_forward_hook(hook)


def learned(learner, items: Iterable):
    """Teaches a stream of batches and boundaries; returns the learner."""
    for item in items:
        learner.new_task() if item == BOUNDARY else learner.learn(*item)
    return learner


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def flat(learner) -> Tensor:
    return torch.cat([entry.detach().flatten() for entry in learner.model.parameters()])


def parameters(learner, labels: list, seed: int = 0) -> Tensor:
    """Returns all parameters after the stream with these labels."""
    return flat(learned(learner, batches(labels, seed)))


def as_samples(learner, x: Tensor, y: Tensor) -> Samples:
    """Returns a batch as steps get it: rows of the head for labels, weight 1."""
    rows = torch.tensor([learner.class_index.row_of[label] for label in y.tolist()])
    return Samples(x, rows, torch.ones(len(y)))


def as_tuples(output: Output) -> list[tuple[list[float], int, float]]:
    """Returns an output as a list of (logits, y, weight), for plain loops."""
    parts = (output.logits, output.y, output.weight)
    return list(zip(*(part.tolist() for part in parts), strict=True))


def naive_cross_entropy(output: Output, among: set[int]) -> float:
    """Returns the mean of -log e^{o_y} / sum over `among`."""
    losses = []
    for logits, y, weight in as_tuples(output):
        if weight:
            losses.append(math.log(sum(math.exp(logits[c] - logits[y]) for c in among)))
    return sum(losses) / len(losses) if losses else 0.0


def steps_before(name: str, learner, batches, monkeypatch) -> list[int]:
    """Returns the number of optimiser steps before each call of this method of the learner."""
    steps, called = [], []
    descend, method = learner.descend, getattr(learner, name)

    def stepping(*arguments):
        descend(*arguments)
        steps.append(1)

    def noting(*arguments):
        called.append(len(steps))
        return method(*arguments)

    monkeypatch.setattr(learner, "descend", stepping)
    monkeypatch.setattr(learner, name, noting)
    for x, y in batches:
        learner.learn(x, y)
    return called
