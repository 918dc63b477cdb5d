"""Backbone and head together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from onepass.nets.head import Head
from onepass.nets.lower import lowered
from onepass.nets.parallel import at_once
from onepass.nets.per_sample import in_vmap

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
        if x.is_cuda and x.ndim == 4 and not in_vmap(x):  # vmap knows no channels-last
            x = x.contiguous(memory_format=torch.channels_last)
        with self._arithmetic(x):
            features: Tensor = self.body(x)
        return features

    def on(self, top: nn.Module, features: Tensor) -> Tensor:
        """What a module, the head or another, makes of features; in fp32."""
        with self._arithmetic(features):
            made: Tensor = top(features)
        return made.float()

    def _arithmetic(self, x: Tensor) -> torch.autocast:
        return torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def train_forward(self, x: Tensor) -> Tensor:
        """What calling it on x gives; but all weights are cast by one kernel."""
        return self.view_forward(x, lambda x: x)[1]

    def view_forward(self, x: Tensor, view: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """A view of x, and what calling it on that gives; weights are cast beside the making of
        the view."""
        if self.precision == "fp32":
            inputs = view(x)
            return inputs, self(inputs)
        weights, inputs = at_once(x, lambda _: lowered(self), view)
        return inputs, functional_call(self, weights, inputs)
