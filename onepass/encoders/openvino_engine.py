"""Runs a frozen network by OpenVINO on a CPU, several times as fast as torch.

The graph is built operation by operation from the network's own modules, so that neither an
exporter nor a file is needed. Each image is a batch of its own, on as many streams as torch has
threads: faster than larger batches, and an image cannot depend on its neighbours.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import torch

from onepass.encoders.whole_numbers import Convolution, FrozenNetwork, Residual

Array = np.ndarray[Any, Any]
PLACES = [2, 3]  # the dimensions of height and width


class OpenVINO:
    """A compiled network, called with pixels, uint8 (n, size, size, 3); returns the sums of its
    outputs (n, d)."""

    name = "openvino"

    def __init__(self, network: FrozenNetwork, size: int) -> None:
        threads = torch.get_num_threads()
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",  # some processors would take bfloat16
            "PERFORMANCE_HINT": "THROUGHPUT",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": str(threads),
        }
        compiled = ov.Core().compile_model(build_graph(network, size), "CPU", settings)
        self._width = sum(network.widths)
        self._queue = ov.AsyncInferQueue(compiled, threads)
        self._queue.set_callback(_store)

    def __call__(self, pixels: Array) -> Array:
        found = np.empty((len(pixels), self._width), np.float32)
        for index in range(len(pixels)):
            self._queue.start_async([pixels[index : index + 1]], found[index])
        self._queue.wait_all()
        return found


def _store(request: Any, row: Array) -> None:
    row[:] = request.get_output_tensor(0).data[0]


def build_graph(network: FrozenNetwork, size: int) -> ov.Model:
    """Returns a network as OpenVINO's graph for one image."""
    pixels = ops.parameter([1, size, size, 3], np.uint8, "pixels")
    shifted = ops.subtract(ops.convert(pixels, "f32"), ops.constant(np.float32(127)))
    x = _convolve(network.stem, ops.transpose(shifted, ops.constant([0, 3, 1, 2])))
    pooled = []
    for index, block in enumerate(network.blocks):
        assert isinstance(block, Residual)
        x = _apply_block(block, x)
        if index in network.pooled_blocks:
            pooled.append(x)
    pooled.append(_convolve(network.head, x))
    pool = ops.reduce_sum if network.whole else ops.reduce_mean
    outputs = [pool(x, ops.constant(PLACES), keep_dims=False) for x in pooled]
    return ov.Model([ops.concat(outputs, 1)], [pixels], "encoder")


def _convolve(layer: Convolution, x: Any) -> Any:
    before, after = layer.pads
    places = ([layer.stride] * 2, [before] * 2, [after] * 2, [1, 1])
    weight = layer.weight.numpy()
    if layer.groups > 1:
        grouped = weight.reshape(layer.groups, -1, *weight.shape[1:])
        out = ops.group_convolution(x, ops.constant(grouped), *places)
    else:
        out = ops.convolution(x, ops.constant(weight), *places)
    out = ops.add(out, ops.constant(layer.bias.numpy().reshape(1, -1, 1, 1)))
    if math.isfinite(layer.high):
        out = ops.clamp(out, layer.low, layer.high)
    return ops.round(out, "half_to_even") if layer.rounds else out


def _apply_block(block: Residual, x: Any) -> Any:
    out = x
    for layer in block.convolutions:
        assert isinstance(layer, Convolution)
        out = _convolve(layer, out)
    if not block.adds:
        return out
    out = ops.add(out, x)
    return ops.clamp(out, -block.bound, block.bound) if math.isfinite(block.bound) else out
