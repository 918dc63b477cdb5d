"""Backbone and head together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from onepass.nets.fast import forward_in_bf16, to_channels_last, view_and_forward_in_bf16
from onepass.nets.head import Head

Precision = Literal["fp32", "bf16"]


class Classifier(nn.Module):
    """A backbone and a head: logits over the head's capacity, in fp32."""

    def __init__(self, body: nn.Module, head: Head, precision: Precision = "fp32") -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.precision = precision

    def forward(self, x: Tensor, *, in_fp32: bool = False) -> Tensor:
        """Logits; `in_fp32` whatever the network's precision is."""
        if in_fp32:
            logits: Tensor = self.head(self.body(to_channels_last(x)))
            return logits
        return self.on(self.head, self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """What the backbone gives, in the dtype of its arithmetic."""
        x = to_channels_last(x)
        with self._arithmetic(x):
            if self.precision == "bf16":
                return forward_in_bf16(self.body, x)
            features: Tensor = self.body(x)
        return features

    def on(self, top: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
        """What a module, the head or another, makes of features; in fp32."""
        with self._arithmetic(features):
            made = top(features)
        return made.float()  # losses are computed in fp32, whatever the network's precision

    def _arithmetic(self, x: Tensor) -> AbstractContextManager[object]:
        """That of the precision, whatever a caller's autocast would make of it."""
        lower, kind = self.precision == "bf16", x.device.type
        if not lower and not torch.is_autocast_enabled(kind):
            return nullcontext()
        return torch.autocast(kind, torch.bfloat16, enabled=lower)

    def train_forward(self, x: Tensor) -> Tensor:
        """What calling it on x gives, in the way that is fast in training."""
        return self.view_forward(x, lambda x: x)[1]

    def view_forward(self, x: Tensor, view: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """A view of x, and what calling it on that gives, in the way that is fast in training."""
        if self.precision == "bf16":
            return view_and_forward_in_bf16(self, x, view)
        inputs = view(x)
        return inputs, self(inputs)
