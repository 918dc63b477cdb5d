"""Networks: a backbone that gives features, and the head on top."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from onepass.errors import InputError, UnknownNameError
from onepass.nets.head import CosineHead, Head
from onepass.nets.initialise import build
from onepass.nets.lower import lowered
from onepass.nets.mlp import MLP
from onepass.nets.resnet import ResNet18

NETS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "mlp": lambda shape: MLP(torch.Size(shape).numel()),
    "resnet18": lambda shape: ResNet18(shape[0]),
}
LARGEST_MLP_IMAGE = 28
Precision = Literal["fp32", "bf16"]


def backbone(net: str | nn.Module, shape: tuple[int, ...], source: torch.Generator) -> nn.Module:
    """The network of that name for samples of that shape, or a copy of the user's own."""
    if isinstance(net, nn.Module):
        return copy.deepcopy(net)
    name = net
    if net == "auto":
        small = len(shape) == 1 or max(shape[1:]) <= LARGEST_MLP_IMAGE
        name = "mlp" if small else "resnet18"
    if name not in NETS:
        raise UnknownNameError("net", name, ["auto", *NETS])
    if name == "resnet18" and len(shape) == 1:
        raise InputError("net 'resnet18' takes images, but the samples are feature vectors")
    return build(lambda: NETS[name](shape), source)


class Classifier(nn.Module):
    """A backbone and a head: logits over the head's capacity, in fp32."""

    def __init__(self, body: nn.Module, head: Head, precision: Precision = "fp32") -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.precision = precision

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        logits: Tensor
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self.head(self.body(x))
        return logits.float()

    def train_forward(self, x: Tensor) -> Tensor:
        """What calling it gives, but all weights are cast at once."""
        if self.precision == "fp32":
            logits: Tensor = self(x)
            return logits
        return functional_call(self, lowered(self), x)  # type: ignore[no-any-return]


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


@torch.no_grad()
def feature_count(body: nn.Module, x: Tensor) -> int:
    """How many features the backbone gives, by asking it; its statistics stay as they are."""
    with evaluating(body):
        features = body(x)
    if features.ndim != 2 or len(features) != len(x):
        raise InputError(
            f"the net must give (samples, features), but for an input of {tuple(x.shape)} it gave "
            f"{tuple(features.shape)}"
        )
    return int(features.shape[1])


__all__ = [
    "MLP",
    "NETS",
    "Classifier",
    "CosineHead",
    "Head",
    "Precision",
    "ResNet18",
    "backbone",
    "build",
    "evaluating",
    "feature_count",
]
