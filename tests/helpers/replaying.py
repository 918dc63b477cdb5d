"""What the tests of the replay losses share: tiny nets, streams of vectors as lists of labels, and
cross-entropy by plain loops."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass import Finetune
from onepass.nets import Head
from onepass.parts import Output

BOUNDARY = "boundary"


class Times(nn.Module):
    """Features that are the inputs, magnified."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class WithBatchNorm(nn.Module):
    """A net on which joint and separate forwards differ."""

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


def small(kind: type, **settings: object):
    """A learner whose steps can be followed by hand: plain SGD, no augmentation."""
    defaults = {
        "net": Times(),
        "memory": 30,
        "replay": 12,
        "optimizer": "sgd",
        "lr": 0.5,
        "weight_decay": 0.0,
        "augment": "none",
        "device": "cpu",
        "seed": 5,
    }
    if issubclass(kind, Finetune):
        del defaults["memory"], defaults["replay"]
    return kind(**{**defaults, **settings})


def batches(labels: list, seed: int = 0) -> Iterator:
    source = torch.Generator().manual_seed(seed)
    for item in labels:
        if item == BOUNDARY:
            yield item
            continue
        y = torch.tensor(item)
        yield torch.randn(len(y), 6, generator=source) + F.one_hot(y % 6, 6), y


def as_images(items: Iterator) -> Iterator:
    for item in items:
        if item == BOUNDARY:
            yield item
        else:
            yield (40 * (item[0].clamp(-3, 3) + 3)).to(torch.uint8).view(-1, 1, 2, 3), item[1]


@contextmanager
def kept_logits() -> Iterator[list[Tensor]]:
    """The logits of every training forward, with the gradients that reach them."""
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


def parameters(learner, labels: list) -> Tensor:
    for item in batches(labels):
        learner.new_task() if item == BOUNDARY else learner.learn(*item)
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def naive_cross_entropy(output: Output, among: set[int]) -> float:
    """The mean of -log e^{o_y} / sum over `among`."""
    losses = []
    for logits, y, weight in zip(*(part.tolist() for part in output), strict=True):
        if weight:
            losses.append(math.log(sum(math.exp(logits[c] - logits[y]) for c in among)))
    return sum(losses) / len(losses) if losses else 0.0


def steps_before(name: str, learner, batches, monkeypatch) -> list[int]:
    """How many optimiser steps a learner had taken each time that it called this method."""
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
