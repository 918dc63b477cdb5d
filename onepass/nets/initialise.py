"""PyTorch's default initialisation, drawn from a given generator instead of the global one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from onepass.base import ram
from onepass.base.errors import InputError
from onepass.base.seeds import seeded_global_generator


def build(make: Callable[[], nn.Module], rng: torch.Generator) -> nn.Module:
    """Returns a new module, with values drawn from `rng`. The global generator stays as it was.

    The constructor determines only the shapes; values that it sets are lost. Raises an InputError
    if the constructor reads a value, if layers share a tensor, or if no rule initialises a tensor.
    """
    try:
        with torch.device("meta"):  # meta tensors have no values, so nothing is drawn
            net = make()
    except NotImplementedError as problem:  # the constructor reads a value
        raise InputError(
            f"the net cannot be made without values ({problem}); register it with initialises=True"
        ) from None
    _refuse_shared(net)
    _allocate(net)
    for name, module in net.named_modules():
        own = list(_tensors(module))
        for _, tensor in own:
            _mark(tensor)
        if own:
            _initialise(module, rng)
        for key, tensor in _tensors(module):
            if _still_marked(tensor):
                raise _refusal(name, module, key)
    return net


def _allocate(net: nn.Module) -> None:
    """Replaces every meta tensor by one with memory. torch's `to_empty` does the same, but imports
    sympy, which takes a third of a second. Raises a MemoryError if there is too little RAM for the
    parameters and their gradients."""
    ram.expect_ram(2 * sum(parameter.nbytes for parameter in net.parameters()), "the net")
    for module in net.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            room = torch.empty(parameter.shape, dtype=parameter.dtype)
            setattr(module, name, nn.Parameter(room, parameter.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))


def _refuse_shared(net: nn.Module) -> None:
    """Raises an InputError if two layers share a tensor, because `_allocate` would give each its
    own."""
    known = set()
    for name, module in net.named_modules():
        for key, tensor in _tensors(module):
            if id(tensor) in known:
                raise _refusal(name, module, key, "which another layer shares")
            known.add(id(tensor))


def _initialise(module: nn.Module, rng: torch.Generator) -> None:
    """Sets initial values of a layer's own tensors, not those of the layers inside it. A layer
    without a rule stays as it was."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        fan_in = module.weight[0].numel()
        bound = 1 / math.sqrt(fan_in)
        nn.init.uniform_(module.weight, -bound, bound, generator=rng)
        if module.bias is not None:
            nn.init.uniform_(module.bias, -bound, bound, generator=rng)
    elif isinstance(module, nn.BatchNorm2d):
        module.reset_parameters()  # ones and zeros: nothing is drawn
    elif callable(reset := getattr(module, "reset_parameters", None)):
        with seeded_global_generator(rng):  # `reset_parameters` draws from the global generator
            reset()


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields a module's own parameters, buffers and plain tensor attributes, by name. `_allocate`
    leaves the attributes on the meta device."""
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)
    yield from ((name, value) for name, value in vars(module).items() if isinstance(value, Tensor))


@torch.no_grad()
def _mark(tensor: Tensor) -> None:
    """Fills a tensor with a value that no initialisation writes, so that `_still_marked` finds the
    tensors without initial values."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(math.nan)
    elif tensor.dtype != torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def _still_marked(tensor: Tensor) -> bool:
    if tensor.is_meta or tensor.dtype == torch.bool:  # no rule sets these, so they count as unset
        return True
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    return bool((tensor == torch.iinfo(tensor.dtype).max).any())


def _refusal(
    name: str, module: nn.Module, tensor: str, why: str = "for which there is no rule"
) -> InputError:
    kind = type(module).__name__
    layer = f"its layer {name!r} ({kind})" if name else f"it ({kind})"
    return InputError(
        f"the net cannot be initialised: {layer} has {tensor!r}, {why}; give the finished module "
        "as net=…, or register the network with initialises=True"
    )
