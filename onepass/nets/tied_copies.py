"""Copies of a network in evaluation mode, beside the one that trains. A tied copy has modules of
its own and shares every tensor, so that it follows training without being updated. A recalibrated
copy has its own tensors, with BatchNorm statistics of given inputs."""

from __future__ import annotations

import copy
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from onepass.nets.batch_norm_modes import NormLayer

Net = TypeVar("Net", bound=nn.Module)
VALUES = (int, float, bool, str)  # types of plain attributes that `retie` copies


def tied_eval_copy(net: Net) -> Net:
    """Returns a copy in evaluation mode that shares all tensors with the network.

    Predicting with it does not switch the mode of the network that trains. With several threads a
    switch is unsafe: one may restore the mode while another still needs it.
    """
    shared = {id(tensor): tensor for tensor in chain(net.parameters(), net.buffers())}
    return copy.deepcopy(net, shared).eval()


def tied_batch_norm_copy(net: Net, like: nn.Module) -> Net:
    """Returns a tied copy in evaluation mode, except for its BatchNorm layers. Those that are in
    training mode in `like`, a network with the same modules, normalise with the statistics of each
    batch and do not update the running ones."""
    tied = tied_eval_copy(net)
    for own, theirs in zip(tied.modules(), like.modules(), strict=True):
        if isinstance(own, NormLayer) and theirs.training:
            own.train()
            own.momentum = 0.0
            own.num_batches_tracked = None  # do not count in the shared tensor
    return tied


def recalibrated_copy(net: Net, like: nn.Module, inputs: Tensor) -> Net:
    """Returns an independent copy in evaluation mode. Its BatchNorm layers that are in training
    mode in `like`, a network with the same modules, have the statistics of the inputs. If there are
    no inputs, they keep the network's."""
    tied = copy.deepcopy(net).eval()
    for own, theirs in zip(tied.modules(), like.modules(), strict=True):
        if isinstance(own, NormLayer) and theirs.training:
            own.train()
            own.momentum = 1.0  # the running statistics become those of the next batch
    if len(inputs):
        with torch.no_grad():
            tied(inputs)
    return tied.eval()


def retie(tied: nn.Module, net: nn.Module) -> None:
    """Gives a tied copy all tensors of the network again, because the network may have replaced
    some: the parameters of a head that has grown, for example. Copies plain attributes too, such as
    numbers."""
    for theirs, own in zip(tied.modules(), net.modules(), strict=True):
        registered = chain(own.named_parameters(recurse=False), own.named_buffers(recurse=False))
        for name, tensor in registered:
            setattr(theirs, name, tensor)
        for name, value in vars(own).items():
            if isinstance(value, Tensor):
                setattr(theirs, name, value.detach())
            elif isinstance(value, VALUES) and name != "training":
                setattr(theirs, name, value)
