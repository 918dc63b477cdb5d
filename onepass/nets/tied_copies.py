"""The network in evaluation mode, beside the one that trains."""

from __future__ import annotations

import copy
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from onepass.nets.norms import NormLayer

Net = TypeVar("Net", bound=nn.Module)
VALUES = (int, float, bool, str)


def tied_eval_copy(net: Net) -> Net:
    """The same network with modules of its own, all in evaluation mode, and the same tensors.

    Whoever predicts with it sees every step of training and switches no mode that training relies
    on: a mode that one thread restores while another still needs it stays wrong for good.
    """
    shared = {id(tensor): tensor for tensor in chain(net.parameters(), net.buffers())}
    return copy.deepcopy(net, shared).eval()


def tied_batch_norm_copy(net: Net, like: nn.Module) -> Net:
    """The same tensors once more, evaluating; but normalisation layers that train in `like`, a
    network of the same kind, have the statistics of each batch and leave the running ones alone."""
    twin = tied_eval_copy(net)
    for own, theirs in zip(twin.modules(), like.modules(), strict=True):
        if isinstance(own, NormLayer) and theirs.training:
            own.train()
            own.momentum = 0.0
            own.num_batches_tracked = None  # or it would count in the network's own tensor
    return twin


def recalibrated_copy(net: Net, like: nn.Module, inputs: Tensor) -> Net:
    """A copy, evaluating; normalisation layers that train in `like`, a network of the same kind,
    have the statistics of these inputs, if there are any."""
    twin = copy.deepcopy(net).eval()
    for own, theirs in zip(twin.modules(), like.modules(), strict=True):
        if isinstance(own, NormLayer) and theirs.training:
            own.train()
            own.momentum = 1.0  # the running statistics become those of the next batch
    if len(inputs):
        with torch.no_grad():
            twin(inputs)
    return twin.eval()


def retie(twin: nn.Module, net: nn.Module) -> None:
    """Shares anew what the network has replaced instead of changing it in place: parameters of a
    head that has grown, buffers, and what a module keeps in plain attributes."""
    for theirs, own in zip(twin.modules(), net.modules(), strict=True):
        registered = chain(own.named_parameters(recurse=False), own.named_buffers(recurse=False))
        for name, tensor in registered:
            setattr(theirs, name, tensor)
        for name, value in vars(own).items():
            if isinstance(value, Tensor):
                setattr(theirs, name, value.detach())
            elif isinstance(value, VALUES) and name != "training":
                setattr(theirs, name, value)
