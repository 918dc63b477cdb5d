"""A network of whole numbers, which has the same bits on every machine.

EfficientNet-lite is made of convolutions, ReLU6, additions and a mean. Its weights and activations
can be whole numbers times powers of two, so small that each product and each partial sum is exact
in float32. Then neither order, blocking, threads, batch, layout, library nor tensor cores can
change a bit of the features.

For each convolution, with batch normalisation folded into W and b, and inputs of at most `amax`
steps, an output channel gets the largest e for which the whole weights round(W 2^e) satisfy both

    amax sum |W 2^e| + |b 2^e| < 0.98 * 2^24     sums are exact in float32
    |W 2^e| <= 2^11                              products are exact in TF32 (11 bits)

Activations are whole steps: pixel - 127; 2^-6 after ReLU6 (at most 384); 2^-5 after a projection
and after an addition (clipped at 1023). The power of two that leads from a sum to steps is part of
the weights and the bias, so they are whole numbers times a power of two. A sum is clipped, then
rounded half to even. The features are sums over all places, whole as well.

The weights are derived by operations that IEEE 754 defines to the last bit (+ - * / and sqrt in
float64, rounding, scaling by powers of two), one number at a time, and by sums of whole numbers.
So a machine derives the same weights, and their hash is pinned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from onepass.base.checksum import sha256
from onepass.base.errors import DataError
from onepass.encoders.efficientnet_lite import Block, EfficientNetLite, PaddedConv2d

Array = np.ndarray[Any, Any]
LARGEST_SUM = 0.98 * 2**24
LARGEST_WEIGHT = 2**11
RELU_BITS, PROJECTION_BITS = 6, 5  # a step is 2^-6 or 2^-5
PIXEL_BITS = 7  # the network's inputs are (pixel - 127) / 2^7
LARGEST_PIXEL = 128  # |pixel - 127|
LARGEST_RELU = 6 * 2**RELU_BITS
LARGEST_PROJECTION = 1023
EARLIER_STAGES = (2, 4, 5)  # `^` joins their last blocks: 5/16, 11/16 and 15/16 of lite0's blocks
DERIVED = {  # SHA-256 of the whole weights
    "efficientnet-lite0": "562d128196b553de2245cdc63e41672506cf6200911d008e391796e76063a970",
    "efficientnet-lite1": "12621368d10ee677e060cf6b23314def73eb9a274bf815363336a1002f5dd6c5",
    "efficientnet-lite2": "c48467ce9871047cf4903ee292c2b10aa4d7443b60a8fbe912e6d4fbcc68df2b",
}


class Steps(NamedTuple):
    """Activations as whole numbers of at most `largest`, in units of 2^-bits."""

    bits: int
    largest: int


PIXELS = Steps(PIXEL_BITS, LARGEST_PIXEL)
RELU = Steps(RELU_BITS, LARGEST_RELU)
PROJECTION = Steps(PROJECTION_BITS, LARGEST_PROJECTION)


class Convolution(nn.Module):
    """A convolution with bias whose outputs are clipped to [low, high] and, if `rounds`, rounded
    half to even. Without bounds, `low` and `high` are infinite."""

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        weight: Array,
        bias: Array,
        shape: PaddedConv2d,
        low: float,
        high: float,
        *,
        rounds: bool,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", torch.from_numpy(weight.astype(np.float32)))
        self.register_buffer("bias", torch.from_numpy(bias.astype(np.float32)))
        self.stride, self.groups, self.pads = shape.stride[0], shape.groups, shape.pads
        self.low, self.high, self.rounds = low, high, rounds

    def forward(self, x: Tensor) -> Tensor:
        before, after = self.pads
        if before != after:
            x, before = F.pad(x, (before, after, before, after)), 0
        out = F.conv2d(x, self.weight, self.bias, self.stride, before, groups=self.groups)
        out = out.clamp(self.low, self.high)
        return out.round() if self.rounds else out


class Residual(nn.Module):
    """Convolutions one after another; the input is added to their output if `adds`, and the sum is
    clipped."""

    def __init__(self, convolutions: list[Convolution], *, adds: bool) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.adds, self.bound = adds, convolutions[-1].high
        self.outputs = len(convolutions[-1].bias)

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for convolution in self.convolutions:
            out = convolution(out)
        return (out + x).clamp(-self.bound, self.bound) if self.adds else out


class FrozenNetwork(nn.Module):
    """EfficientNet-lite without batch normalisation, in whole numbers or in floating point.

    `forward` takes pixels, uint8 (n, height, width, 3). It returns the last convolution's outputs
    (n, 1280), added up over all places; in floating point, their means. With `earlier`, those of
    three earlier blocks come before them. `widths` are the numbers of features of these outputs.
    """

    def __init__(
        self,
        stem: Convolution,
        blocks: list[Residual],
        head: Convolution,
        stage_ends: list[int],
        *,
        whole: bool,
        earlier: bool,
    ) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head
        self.whole = whole
        self.pooled_blocks = [stage_ends[stage] for stage in EARLIER_STAGES] if earlier else []
        pooled = [blocks[index].outputs for index in self.pooled_blocks]
        self.widths = [*pooled, len(head.bias)]

    def forward(self, pixels: Tensor) -> Tensor:
        dtype = self.stem.weight.dtype
        x = self.stem(pixels.to(dtype).sub(127).permute(0, 3, 1, 2))
        pooled = []
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in self.pooled_blocks:
                pooled.append(x)
        pooled.append(self.head(x))
        pool = torch.sum if self.whole else torch.mean
        return torch.cat([pool(x, dim=(2, 3)) for x in pooled], dim=1)


def freeze(network: EfficientNetLite, *, whole: bool, earlier: bool = False) -> FrozenNetwork:
    """Returns a network's frozen form. Raises a DataError if its numbers are not finite."""
    make = _whole_convolution if whole else _float_convolution
    blocks, steps = [], RELU
    for block in network.blocks:
        assert isinstance(block, Block)
        convolutions = []
        for (shape, norm), after in zip(_layers(block), _steps(block), strict=True):
            convolutions.append(make(shape, norm, steps, after))
            steps = after
        blocks.append(Residual(convolutions, adds=block.residual))
    stem = make(network.conv_stem, network.bn0, PIXELS, RELU)
    head = make(network.conv_head, network.bn1, PROJECTION, RELU)
    frozen = FrozenNetwork(stem, blocks, head, network.stage_ends, whole=whole, earlier=earlier)
    return frozen.eval().requires_grad_(False)


def _layers(block: Block) -> Iterator[tuple[PaddedConv2d, nn.BatchNorm2d]]:
    """Yields the convolutions of a block, each with its normalisation."""
    if block.expands:
        yield block.expand_conv, block.bn0
    yield block.depthwise_conv, block.bn1
    yield block.project_conv, block.bn2


def _steps(block: Block) -> list[Steps]:
    """Returns the steps of the outputs of a block's convolutions."""
    return [*([RELU] * (1 + block.expands)), PROJECTION]


def _whole_convolution(
    shape: PaddedConv2d, norm: nn.BatchNorm2d, before: Steps, after: Steps
) -> Convolution:
    """Returns a convolution from whole steps to whole steps."""
    weight, bias = fold(shape, norm)
    whole, offset, exponent = whole_weights(weight, bias * 2.0**before.bits, before.largest)
    # sums are in units of 2^-(exponent + before.bits); outputs in units of 2^-after.bits
    shift = after.bits - before.bits - exponent
    return Convolution(
        np.ldexp(whole, shift[:, None, None, None]),
        np.ldexp(offset, shift),
        shape,
        low=0 if after is RELU else -after.largest,
        high=after.largest,
        rounds=True,
    )


def _float_convolution(
    shape: PaddedConv2d, norm: nn.BatchNorm2d, before: Steps, after: Steps
) -> Convolution:
    """Returns a convolution in floating point; the first one takes pixel - 127."""
    weight, bias = fold(shape, norm)
    if before is PIXELS:
        weight = weight / 2.0**PIXEL_BITS
    low, high = (0.0, 6.0) if after is RELU else (-np.inf, np.inf)
    return Convolution(weight, bias, shape, low, high, rounds=False)


def fold(convolution: PaddedConv2d, norm: nn.BatchNorm2d) -> tuple[Array, Array]:
    """Returns the weights and the bias, in float64, of a convolution followed by a batch
    normalisation with fixed statistics."""
    assert norm.running_mean is not None and norm.running_var is not None
    tensors = (convolution.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var)
    weight, gamma, beta, mean, variance = (t.detach().numpy().astype(np.float64) for t in tensors)
    scale = gamma / np.sqrt(variance + norm.eps)
    folded, bias = weight * scale[:, None, None, None], beta - mean * scale
    if not (np.isfinite(folded).all() and np.isfinite(bias).all()):
        raise DataError("the network's weights are not finite, or a variance is negative")
    return folded, bias


def whole_weights(weight: Array, bias: Array, amax: int) -> tuple[Array, Array, Array]:
    """Returns whole weights round(W 2^e), whole biases round(b 2^e), and e for each channel: the
    largest that satisfies both bounds for inputs of at most `amax` steps.

    `weight` is (outputs, inputs, height, width), `bias` (outputs) in units of the inputs' steps.
    """
    flat = weight.reshape(len(weight), -1)
    # the largest |W| is m 2^k with 1/2 <= m < 1, so that no e above 12 - k can hold
    exponent = 12 - np.frexp(np.abs(flat).max(axis=1))[1]
    while True:
        whole = np.rint(np.ldexp(flat, exponent[:, None]))
        offset = np.rint(np.ldexp(bias, exponent))
        too_large = ~within_bounds(whole, offset, amax)
        if not too_large.any():
            return whole.reshape(weight.shape), offset, exponent
        exponent = exponent - too_large


def within_bounds(whole: Array, offset: Array, amax: int) -> Array:
    """Returns for each channel whether its sums stay exact, and its weights within 11 bits. The
    float64 sums are of whole numbers, so they have no rounding while the bound can hold."""
    sizes = np.abs(whole)
    exact = amax * sizes.sum(axis=1) + np.abs(offset) < LARGEST_SUM
    within: Array = exact & (sizes.max(axis=1) <= LARGEST_WEIGHT)
    return within


def weights_sha256(network: FrozenNetwork) -> str:
    """Returns the hash of a frozen network's weights."""
    return sha256(dict(network.state_dict()))
