"""Networks: a backbone that gives features, and the head on top."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from onepass.errors import InputError, UnknownNameError
from onepass.nets.classifier import Classifier, Precision, evaluating
from onepass.nets.fast import at_once, compile_kernels
from onepass.nets.head import CosineHead, Head
from onepass.nets.initialise import build
from onepass.nets.mlp import MLP
from onepass.nets.nearest_mean import NearestMean
from onepass.nets.per_sample import Gradients, batch_gradients
from onepass.nets.resnet import ResNet18
from onepass.nets.virtual import after_step, logits_with, of_free_rows

NETS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "mlp": lambda shape: MLP(torch.Size(shape).numel()),
    "resnet18": lambda shape: ResNet18(shape[0]),
}
LARGEST_MLP_IMAGE = 28


def backbone(net: str | nn.Module, shape: tuple[int, ...], rng: torch.Generator) -> nn.Module:
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
    return build(lambda: NETS[name](shape), rng)


@torch.no_grad()
def feature_count(body: nn.Module, x: Tensor) -> int:
    """How many features the backbone gives, by asking it; its statistics stay as they are."""
    with evaluating(body):
        features = body(x)
    if not isinstance(features, Tensor):
        raise InputError(f"the net must give a tensor, but it gave a {type(features).__name__}")
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
    "Gradients",
    "Head",
    "NearestMean",
    "Precision",
    "ResNet18",
    "after_step",
    "at_once",
    "backbone",
    "batch_gradients",
    "build",
    "compile_kernels",
    "evaluating",
    "feature_count",
    "logits_with",
    "of_free_rows",
]
