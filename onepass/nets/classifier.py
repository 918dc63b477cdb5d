"""Backbone and head together, and the mode in which they predict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from onepass.nets.fast import call_lowered, laid_out
from onepass.nets.head import Head

Precision = Literal["fp32", "bf16"]


class Classifier(nn.Module):
    """A backbone and a head: logits over the head's capacity, in fp32."""

    def __init__(self, body: nn.Module, head: Head, precision: Precision = "fp32") -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.precision = precision

    def forward(self, x: Tensor) -> Tensor:
        return self.on(self.head, self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """What the backbone gives, in the dtype of its arithmetic."""
        with self._arithmetic(x):
            features: Tensor = self.body(laid_out(x))
        return features

    def on(self, top: nn.Module, features: Tensor) -> Tensor:
        """What a module, the head or another, makes of features; in fp32."""
        with self._arithmetic(features):
            made: Tensor = top(features)
        return made.float()  # losses are computed in fp32, whatever the network's precision

    def _arithmetic(self, x: Tensor) -> torch.autocast:
        return torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def train_forward(self, x: Tensor, view: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """What calling it on x, or on a view of x, gives, in the way that is fast in training."""
        view = view or (lambda x: x)
        if self.precision == "bf16":
            return call_lowered(self, x, view)
        logits: Tensor = self(view(x))
        return logits


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module's own mode again: some may be frozen for good."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
