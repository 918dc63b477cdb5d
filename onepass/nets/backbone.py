"""Makes a learner's backbone, from a name or from a module of the user's own, and counts its
features."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from onepass.base.errors import InputError, UnknownNameError
from onepass.base.seeds import seeded_global_generator
from onepass.nets.initialise import build
from onepass.nets.registry import NETWORKS, Network, Preprocess, Shape, network_from_reference
from onepass.nets.tied_copies import tied_eval_copy

LARGEST_MLP_IMAGE = 28  # pixels a side; above this, `auto` takes a ResNet18


def backbone(net: str | nn.Module, shape: Shape, rng: torch.Generator) -> nn.Module:
    """Returns the named network for samples of this shape, or a copy of the user's module. Raises
    an InputError if the network cannot be made or copied."""
    if isinstance(net, nn.Module):
        return _copy_of(net)
    found = _network_for(net, shape)
    given = found.shape_given(shape)
    if not found.initialises:
        return build(lambda: found.make(given), rng)
    with seeded_global_generator(rng):
        made = found.make(given)
    if not isinstance(made, nn.Module):
        raise InputError(f"net {net!r} returned a {type(made).__name__}, not a torch.nn.Module")
    return made


def _copy_of(net: nn.Module) -> nn.Module:
    if odd := [name for name, value in net.state_dict().items() if not isinstance(value, Tensor)]:
        raise InputError(
            f"the net's state_dict holds {odd[0]!r}, which is not a tensor and cannot be saved: "
            "leave it out of the state_dict"
        )
    try:
        return copy.deepcopy(net)
    except Exception as problem:  # the net's attributes may raise anything
        raise InputError(f"the net cannot be copied: {problem}") from None


def preprocessing(net: str | nn.Module, shape: Shape) -> Preprocess | None:
    """Returns the network's own preprocessing of raw inputs, or None if it has none. The learner
    then applies its mean and std."""
    return None if isinstance(net, nn.Module) else _network_for(net, shape).preprocess


def _network_for(name: str, shape: Shape) -> Network:
    """Returns the network of a name or of a reference `package.module:function`. `auto` depends on
    the shape of a sample. Raises an InputError if the network does not take this shape."""
    if name == "auto":
        small = len(shape) == 1 or max(shape[1:]) <= LARGEST_MLP_IMAGE
        name = "mlp" if small else "resnet18"
    if ":" not in name and name not in NETWORKS:
        raise UnknownNameError("net", name, ["auto", *NETWORKS.names()])
    found = network_from_reference(name) if ":" in name else NETWORKS[name]
    found.check_takes(shape)
    return found


@torch.no_grad()
def feature_count(body: nn.Module, x: Tensor) -> int:
    """Returns the number of features that the backbone returns for the samples x. The forward pass
    changes no running statistics. Raises an InputError unless it returns (samples, features)."""
    features = tied_eval_copy(body)(x)
    if not isinstance(features, Tensor):
        raise InputError(
            f"the net must return a tensor, but it returned a {type(features).__name__}"
        )
    if features.ndim != 2 or len(features) != len(x):
        raise InputError(
            f"the net must return (samples, features), but for an input of {tuple(x.shape)} it "
            f"returned {tuple(features.shape)}"
        )
    if features.dtype not in (torch.float32, torch.bfloat16):
        raise InputError(f"the net must return float32 or bfloat16 features, not {features.dtype}")
    return int(features.shape[1])
