"""The network of a learner: backbone and head, in fp32 or bf16."""

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
    """A network, body and head, that returns fp32 logits over the head's capacity."""

    def __init__(self, body: nn.Module, head: Head, precision: Precision = "fp32") -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.precision = precision

    def forward(self, x: Tensor, *, in_fp32: bool = False) -> Tensor:
        """Returns logits (n, C). `in_fp32` computes in fp32 even if the network's precision is
        bf16."""
        if in_fp32:
            logits: Tensor = self.head(self.body(to_channels_last(x)))
            return logits
        return self.on(self.head, self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Returns the backbone's features (n, features). They are usually bf16 if the network's
        precision is bf16."""
        x = to_channels_last(x)
        with self._arithmetic(x):
            if self.precision == "bf16":
                return forward_in_bf16(self.body, x)
            features: Tensor = self.body(x)
        return features

    def on(self, top: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
        """Returns the output of the head or of another module for these features. It is computed in
        the network's precision and returned as fp32."""
        with self._arithmetic(features):
            made = top(features)
        return made.float()  # losses are computed in fp32, whatever the network's precision

    def _arithmetic(self, x: Tensor) -> AbstractContextManager[object]:
        """Returns a context that computes in the network's precision, even inside a caller's
        autocast."""
        lower, kind = self.precision == "bf16", x.device.type
        if not lower and not torch.is_autocast_enabled(kind):
            return nullcontext()
        return torch.autocast(kind, torch.bfloat16, enabled=lower)

    def train_forward(self, x: Tensor) -> Tensor:
        """Returns the same logits as a call on x. In bf16 and in training it is faster."""
        return self.view_forward(x, lambda x: x)[1]

    def view_forward(self, x: Tensor, view: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Returns view(x) and its logits. In bf16 and in training it is faster than two calls."""
        if self.precision == "bf16":
            return view_and_forward_in_bf16(self, x, view)
        inputs = view(x)
        return inputs, self(inputs)
