"""Triton kernels for BatchNorm in training, fused with an addition and a ReLU.

In bfloat16 and channels-last, PyTorch takes seven to ten kernels for them, forward and backward,
and two fifths of a ResNet18's step. Here there are four. A batch of images is a matrix of pixels x
channels. Each pass has two kernels. In the first, each program reduces some pixels of some
channels. The second combines these partial results and goes over the pixels again. Sums are fp32 in
a fixed order, so that a step repeats bit for bit.

    y = relu(w (x - mean) / sqrt(var + eps) + b + plus)
    g = dy [y > 0],   h = (x - mean) / sqrt(var + eps)
    db = sum g,   dw = sum g h,   dplus = g,   dx = w / sqrt(var + eps) (g - db / n - h dw / n)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

CHANNELS = 32  # per program
PIXELS = 128  # per read
PROGRAMS = 256  # about two for each multiprocessor of a large GPU
MOST_PARTS = 128  # partial results that the second kernel reads at once
FEWEST_PIXELS = 32  # per program
WARPS = 8

# Triton compiles a kernel twice, for sizes that 16 divides and for others. Only the number of
# channels affects loads, so the other sizes are not specialised. This halves the compilation.
kernel = triton.jit(do_not_specialize=["pixels", "share", "parts"])


@triton.jit
def _tile(start, end, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Returns the offsets of a program's next values, and a mask of those that exist."""
    pixel = start + tl.arange(0, PIXELS)[:, None]
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    return pixel.to(tl.int64) * channels + channel, (pixel < end) & (channel < channels)


@kernel
def _moments(
    x, means, squares, pixels, channels, share, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Writes the mean and the sum of squared deviations of each program's pixels. Deviations are
    taken from the first pixel first, so that a large mean loses no precision."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    first = tl.program_id(0) * share
    end = tl.minimum(first + share, pixels)
    origin = tl.load(x + first.to(tl.int64) * channels + channel, channel < channels, 0.0)
    origin = origin.to(tl.float32)[None, :]
    sums = tl.zeros([PIXELS, CHANNELS], tl.float32)
    products = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for start in range(first, end, PIXELS):
        at, real = _tile(start, end, channels, PIXELS, CHANNELS)
        away = tl.where(real, tl.load(x + at, real, 0.0).to(tl.float32) - origin, 0.0)
        sums += away
        products += away * away
    count = (end - first).to(tl.float32)
    mean = tl.sum(sums, 0) / count
    part = tl.program_id(0) * channels + channel
    tl.store(means + part, tl.sum(origin, 0) + mean, channel < channels)
    tl.store(squares + part, tl.sum(products, 0) - count * mean * mean, channel < channels)


@triton.jit
def _load_partials(written, channels, parts, MOST: tl.constexpr, CHANNELS: tl.constexpr):
    """Loads the partial results of the first kernel for these channels."""
    part = tl.arange(0, MOST)[:, None]
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    return tl.load(written + part * channels + channel, (part < parts) & (channel < channels), 0.0)


# The first lines combine the partial moments of all programs: the squares about each program's own
# mean, plus the squared distance of that mean from the total mean.
@kernel
def _normalise(
    x, plus, y, weight, bias, means, squares, mean_of, scale_of, running_mean, running_var,
    pixels, channels, share, parts, eps, momentum,
    ADD: tl.constexpr, RELU: tl.constexpr,
    MOST: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real_channel = channel < channels
    part = tl.arange(0, MOST)
    count = tl.minimum(tl.maximum(pixels - part * share, 0), share).to(tl.float32)[:, None]
    each = _load_partials(means, channels, parts, MOST, CHANNELS)
    mean = tl.sum(each * count, 0) / pixels
    apart = (each - mean[None, :]) * (each - mean[None, :]) * count
    square = tl.sum(_load_partials(squares, channels, parts, MOST, CHANNELS) + apart, 0)
    scale = tl.rsqrt(square / pixels + eps)
    if tl.program_id(0) == 0:
        tl.store(mean_of + channel, mean, real_channel)
        tl.store(scale_of + channel, scale, real_channel)
        old = tl.load(running_mean + channel, real_channel, 0.0)
        tl.store(running_mean + channel, old + momentum * (mean - old), real_channel)
        old = tl.load(running_var + channel, real_channel, 0.0)
        unbiased = square / tl.maximum(pixels - 1, 1)
        tl.store(running_var + channel, old + momentum * (unbiased - old), real_channel)
    factor = tl.load(weight + channel, real_channel, 0.0) * scale
    shift = tl.load(bias + channel, real_channel, 0.0) - mean * factor
    first = tl.program_id(0) * share
    end = tl.minimum(first + share, pixels)
    for start in range(first, end, PIXELS):
        at, real = _tile(start, end, channels, PIXELS, CHANNELS)
        value = tl.load(x + at, real, 0.0).to(tl.float32) * factor[None, :] + shift[None, :]
        if ADD:
            value += tl.load(plus + at, real, 0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + at, value.to(y.dtype.element_ty), real)


@triton.jit
def _relu_gradient(dy, y, at, real, RELU: tl.constexpr):
    """Returns g, the gradient at the input of the ReLU."""
    g = tl.load(dy + at, real, 0.0).to(tl.float32)
    if RELU:
        g = tl.where(tl.load(y + at, real, 0.0).to(tl.float32) > 0, g, 0.0)
    return g


@kernel
def _partial_gradient_sums(
    dy, x, y, mean_of, scale_of, sums, products, pixels, channels, share,
    RELU: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Writes sum g and sum g h over each program's pixels."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mean = tl.load(mean_of + channel, channel < channels, 0.0)[None, :]
    scale = tl.load(scale_of + channel, channel < channels, 0.0)[None, :]
    first = tl.program_id(0) * share
    end = tl.minimum(first + share, pixels)
    plain = tl.zeros([PIXELS, CHANNELS], tl.float32)
    with_h = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for start in range(first, end, PIXELS):
        at, real = _tile(start, end, channels, PIXELS, CHANNELS)
        g = _relu_gradient(dy, y, at, real, RELU)
        plain += g
        with_h += g * (tl.load(x + at, real, 0.0).to(tl.float32) - mean) * scale
    part = tl.program_id(0) * channels + channel
    tl.store(sums + part, tl.sum(plain, 0), channel < channels)
    tl.store(products + part, tl.sum(with_h, 0), channel < channels)


# Combines the partial sums into db and dw, and writes dx and dplus.
@kernel
def _gradients(
    dy, x, y, dx, dplus, weight, dweight, dbias, mean_of, scale_of, sums, products,
    pixels, channels, share, parts,
    ADD: tl.constexpr, RELU: tl.constexpr,
    MOST: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real_channel = channel < channels
    db = tl.sum(_load_partials(sums, channels, parts, MOST, CHANNELS), 0)
    dw = tl.sum(_load_partials(products, channels, parts, MOST, CHANNELS), 0)
    if tl.program_id(0) == 0:
        tl.store(dbias + channel, db, real_channel)
        tl.store(dweight + channel, dw, real_channel)
    mean = tl.load(mean_of + channel, real_channel, 0.0)[None, :]
    scale = tl.load(scale_of + channel, real_channel, 0.0)[None, :]
    factor = tl.load(weight + channel, real_channel, 0.0)[None, :] * scale
    db, dw = (db / pixels)[None, :], (dw / pixels)[None, :]
    first = tl.program_id(0) * share
    end = tl.minimum(first + share, pixels)
    for start in range(first, end, PIXELS):
        at, real = _tile(start, end, channels, PIXELS, CHANNELS)
        g = _relu_gradient(dy, y, at, real, RELU)
        h = (tl.load(x + at, real, 0.0).to(tl.float32) - mean) * scale
        tl.store(dx + at, (factor * (g - db - h * dw)).to(dx.dtype.element_ty), real)
        if ADD:
            tl.store(dplus + at, g.to(dplus.dtype.element_ty), real)


class _Layout:
    """The grid of programs for a batch: `parts` programs divide the pixels of a block of channels,
    `share` pixels each."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[1]
        self.pixels = x.numel() // self.channels
        across = triton.cdiv(self.channels, CHANNELS)
        wanted = min(MOST_PARTS, max(1, PROGRAMS // across))
        self.share = triton.cdiv(self.pixels, min(wanted, triton.cdiv(self.pixels, FEWEST_PIXELS)))
        self.parts = triton.cdiv(self.pixels, self.share)
        self.grid = (self.parts, across)

    def scratch(self, x: Tensor) -> Tensor:
        """Returns room for two partial results of each program."""
        shape = (2, self.parts, self.channels)
        return torch.empty(shape, dtype=torch.float32, device=x.device)


class NormReLU(torch.autograd.Function):
    """Computes relu(batch norm(x) + plus) of channels-last images, with both extras optional, and
    updates the running mean and variance."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        plus: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor, Tensor],
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        if plus is not None:
            plus = plus.contiguous(memory_format=torch.channels_last)
        plan, y = _Layout(x), torch.empty_like(x)
        sizes = {"PIXELS": PIXELS, "CHANNELS": CHANNELS, "num_warps": WARPS}
        means, squares = plan.scratch(x)
        _moments[plan.grid](x, means, squares, plan.pixels, plan.channels, plan.share, **sizes)
        mean, scale = torch.empty_like(weight), torch.empty_like(weight)
        _normalise[plan.grid](
            x, plus, y, weight, bias, means, squares, mean, scale, *running,
            plan.pixels, plan.channels, plan.share, plan.parts, eps, momentum,
            ADD=plus is not None, RELU=relu, MOST=MOST_PARTS, **sizes,
        )  # fmt: skip
        ctx.save_for_backward(x, y, weight, mean, scale)
        ctx.add, ctx.relu, ctx.plan = plus is not None, relu, plan
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, mean, scale = ctx.saved_tensors
        plan, sizes = ctx.plan, {"PIXELS": PIXELS, "CHANNELS": CHANNELS, "num_warps": WARPS}
        dy = dy.contiguous(memory_format=torch.channels_last)
        sums, products = plan.scratch(x)
        _partial_gradient_sums[plan.grid](
            dy, x, y, mean, scale, sums, products, plan.pixels, plan.channels, plan.share,
            RELU=ctx.relu, **sizes,
        )  # fmt: skip
        dx, dplus = torch.empty_like(x), torch.empty_like(x) if ctx.add else None
        dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
        _gradients[plan.grid](
            dy, x, y, dx, dplus, weight, dweight, dbias, mean, scale, sums, products,
            plan.pixels, plan.channels, plan.share, plan.parts,
            ADD=ctx.add, RELU=ctx.relu, MOST=MOST_PARTS, **sizes,
        )  # fmt: skip
        return dx, dplus, dweight, dbias, None, None, None, None
