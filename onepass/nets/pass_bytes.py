"""The RAM that a forward pass needs, known without computing it."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from onepass.nets.classifier import Classifier


class _HeldBytes(TorchDispatchMode):
    """Measures the bytes of the tensors that operations in the body make, as long as anything
    holds them: `most` is their largest sum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}  # by address, which views share
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view:  # a view of a weight is not a new tensor
            for tensor in tree_leaves(found):
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                    self.made[storage._cdata] = weak, storage.nbytes()
        self.made = {at: held for at, held in self.made.items() if not held[0].expired()}  # type: ignore[no-untyped-call]
        self.most = max(self.most, sum(size for _, size in self.made.values()))
        return found


def pass_bytes(net: Classifier, x: Tensor) -> int | None:
    """Returns the bytes that a forward pass of inputs like x takes, besides x and the weights: with
    gradients enabled, what the backward pass needs is among them. Nothing is computed: torch's fake
    tensors have a shape and no values. Returns None for a network that needs values.

    The first call imports torch's symbolic shapes, which takes about a second."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    held, fake = _HeldBytes(), FakeTensorMode(allow_non_fake_inputs=True)
    try:
        # its own buffers and attributes, which a pass may change
        net = copy.deepcopy(net, {id(weight): weight for weight in net.parameters()})
        with warnings.catch_warnings(), fake, torch.random.fork_rng(devices=[]):
            warnings.simplefilter(
                "ignore"
            )  # weights that functional_call has replaced have a .grad
            like = torch.empty(x.shape, dtype=x.dtype)
            with held:
                net.features(like)
    except Exception:  # a user's network may read values, which raises anything
        return None
    return held.most
