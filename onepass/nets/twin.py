"""The network in evaluation mode, beside the one that trains."""

from __future__ import annotations

import copy
from itertools import chain
from typing import TypeVar

from torch import nn

Net = TypeVar("Net", bound=nn.Module)


def evaluating(net: Net) -> Net:
    """The same network with modules of its own, all in evaluation mode, and the same tensors.

    Whoever predicts with it sees every step of training and switches no mode that training relies
    on: a mode that one thread restores while another still needs it stays wrong for good.
    """
    shared = {id(tensor): tensor for tensor in chain(net.parameters(), net.buffers())}
    return copy.deepcopy(net, shared).eval()


def refresh(twin: nn.Module, net: nn.Module) -> None:
    """Buffers that the network has replaced, instead of changing them in place, are shared anew."""
    for theirs, own in zip(twin.modules(), net.modules(), strict=True):
        for name, buffer in own.named_buffers(recurse=False):
            setattr(theirs, name, buffer)
