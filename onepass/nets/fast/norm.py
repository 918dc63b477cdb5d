"""BatchNorm together with the addition and ReLU that follow it in a residual network."""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.nets.fast.vmap import in_vmap


class Norm(nn.BatchNorm2d):
    """A BatchNorm2d that computes relu(norm(x) + plus). The addition and the ReLU are optional.

    On a GPU in bfloat16 it uses Triton kernels if Triton works, which makes a ResNet18's step a
    fifth faster. It does not count batches, which only a cumulative average needs: counting would
    cost a kernel per layer and step. In evaluation mode it also works under vmap in mixed
    precision, where torch's BatchNorm does not.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.num_batches_tracked = None

    def forward(self, x: Tensor, plus: Tensor | None = None, relu: bool = False) -> Tensor:
        if self.training and _fusable(x):
            return self._fused(x, plus, relu)
        out = self._in_vmap(x) if in_vmap(x) and not self.training else super().forward(x)
        out = out if plus is None else out + plus
        return F.relu(out) if relu else out

    def _fused(self, x: Tensor, plus: Tensor | None, relu: bool) -> Tensor:
        from onepass.nets.fast.fused_norm import NormReLU

        assert self.running_mean is not None and self.running_var is not None
        assert self.momentum is not None
        running = (self.running_mean, self.running_var)
        arguments = (x, plus, self.weight, self.bias, running, self.momentum, self.eps, relu)
        return NormReLU.apply(*arguments)  # type: ignore[no-any-return, no-untyped-call]

    def _in_vmap(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None and self.running_var is not None
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return (x * scale[:, None, None] + shift[:, None, None]).to(x.dtype)

    def _load_from_state_dict(
        self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *more: Any
    ) -> None:
        """Loads a state. Gives it the current version, because torch would otherwise add a count of
        batches to the state of an old one."""
        super()._load_from_state_dict(state, prefix, {**metadata, "version": self._version}, *more)

    def reset_running_stats(self) -> None:
        assert self.running_mean is not None and self.running_var is not None
        self.running_mean.zero_()
        self.running_var.fill_(1)


def _fusable(x: Tensor) -> bool:
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and x.is_contiguous(memory_format=torch.channels_last)
        and not in_vmap(x)
        and _triton_works(x.device)
    )


def compile_kernels(net: nn.Module) -> None:
    """Compiles the Triton kernels if the network has a `Norm` on a GPU, so that the first step is
    not slow. The first time on a machine takes some seconds."""
    for norm in (module for module in net.modules() if isinstance(module, Norm)):
        if norm.weight.is_cuda:
            _triton_works(norm.weight.device)


@lru_cache
def _triton_works(device: torch.device) -> bool:
    """Returns whether the Triton kernels run here. They need Triton, a C compiler, Python's headers
    and a recent GPU. Warns if Triton is installed but fails."""
    if not find_spec("triton"):
        return False
    x = torch.zeros(2, 16, 1, 1, dtype=torch.bfloat16, device=device, requires_grad=True)
    ones = torch.ones(16, device=device)
    try:
        from onepass.nets.fast.fused_norm import NormReLU

        with torch.enable_grad():
            for plus, relu in ((None, False), (None, True), (x, True)):
                arguments = (x, plus, ones, ones, (ones.clone(), ones.clone()), 0.1, 1e-5, relu)
                NormReLU.apply(*arguments).sum().backward()  # type: ignore[no-untyped-call]
    except Exception as reason:
        warnings.warn(
            f"BatchNorm will be slower, because Triton does not work here: {reason}", stacklevel=2
        )
        return False
    return True
