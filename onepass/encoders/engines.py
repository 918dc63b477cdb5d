"""Engines: what computes a frozen network. Plain torch is the definition; OpenVINO on a CPU and the
compiled network on a GPU are faster.

An engine is used for whole numbers only if it has the definition's bits for two synthetic images,
which reach the clips. These bits are pinned for the published networks at their own size, so that
torch itself is tested too.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch

from onepass.base.errors import OnepassError
from onepass.base.text import error_in_one_line
from onepass.encoders.efficientnet_lite import HEAD
from onepass.encoders.whole_numbers import FrozenNetwork

Array = np.ndarray[Any, Any]
COMPILED_BATCH = 256  # images; a network is compiled for one shape
PADDED_BATCH = 64  # images of a floating-point network on a GPU
ANSWERS = {  # SHA-256 of the sums of the last convolution, for `trial_images` of each size
    ("efficientnet-lite0", 224): "8bfc9a3a74e83a743b5d5a36f7d58853c558a60856937b6442000f4f939cf216",
    ("efficientnet-lite1", 240): "703d704fdf7ba5435a4b23d5d9029bdbee033b36f674cf30ebc69061ee063126",
    ("efficientnet-lite2", 260): "0d8183474b973a0d52c22f84b47e5478c9f5bc4e0eb405c27947e65e3c66fd49",
}
log = logging.getLogger("onepass")
_refused: set[str] = set()  # engines that have been named already


class Engine(Protocol):
    """Returns a network's outputs (n, d) for pixels, uint8 (n, size, size, 3)."""

    name: str

    def __call__(self, pixels: Array) -> Array: ...


class Torch:
    """The network in plain torch.

    Whole numbers take any batch. In floating point, each image is a batch of its own on a CPU; a
    GPU gets batches of one shape, the last one padded.
    """

    name = "torch"

    def __init__(self, network: FrozenNetwork, device: torch.device) -> None:
        layout = torch.channels_last  # pixels come so
        self.network = deepcopy(network).to(device=device, memory_format=layout)  # type: ignore[call-overload]
        self.device = device
        self.batch = 0 if network.whole else 1 if device.type == "cpu" else PADDED_BATCH

    def __call__(self, pixels: Array) -> Array:
        return in_batches(self._run, pixels, self.batch)

    def _run(self, pixels: Array) -> Array:
        with strict_float32(self.device), torch.no_grad():
            found: Array = self.network(torch.from_numpy(pixels).to(self.device)).cpu().numpy()
        return found


class Compiled(Torch):
    """The network compiled by torch for a GPU, with TF32 where the numbers are whole. Other batches
    than full ones are left to plain torch, which has the same bits."""

    name = "torch.compile"

    def __init__(self, network: FrozenNetwork, device: torch.device) -> None:
        super().__init__(network, device)
        self.compiled: Any = torch.compile(self.network, dynamic=False)

    def __call__(self, pixels: Array) -> Array:
        full = len(pixels) - len(pixels) % COMPILED_BATCH
        found = [super().__call__(pixels[full:])] if full < len(pixels) else []
        for first in range(full - COMPILED_BATCH, -1, -COMPILED_BATCH):
            part = torch.from_numpy(pixels[first : first + COMPILED_BATCH]).to(self.device)
            with strict_float32(self.device), tensor_cores(), torch.no_grad():
                found.insert(0, self.compiled(part).cpu().numpy())
        return np.concatenate(found)


def in_batches(run: Callable[[Array], Array], pixels: Array, batch: int) -> Array:
    """Returns what `run` returns for batches of one shape, the last one padded with zeros; for all
    images at once if `batch` is 0."""
    if not batch:
        return run(pixels)
    found = []
    for first in range(0, len(pixels), batch):
        part = pixels[first : first + batch]
        padding = [(0, batch - len(part))] + [(0, 0)] * (pixels.ndim - 1)
        found.append(run(np.pad(part, padding))[: len(part)])
    return np.concatenate(found)


@contextmanager
def strict_float32(device: torch.device) -> Iterator[None]:
    """Keeps convolutions of float32 in float32, whatever the process or the environment say."""
    backends = _convolution_backends()
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


def _convolution_backends() -> tuple[Any, Any]:
    """Returns the settings of convolutions on a CPU and on a GPU."""
    settings: Any = torch.backends  # its stubs lack them
    return settings.mkldnn.conv, settings.cudnn.conv


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Allows TF32 in the body, which is exact for operands of 11 bits."""
    _, backend = _convolution_backends()
    before = backend.fp32_precision
    backend.fp32_precision = "tf32"
    try:
        yield
    finally:
        backend.fp32_precision = before


def choose_engine(network: FrozenNetwork, name: str, size: int, device: torch.device) -> Engine:
    """Returns the fastest engine on a device that computes what the definition does.

    An engine that fails, or has other bits, is named once in a warning and is not used. Raises an
    OnepassError if torch itself does not have the pinned bits.
    """
    batch = COMPILED_BATCH if device.type == "cuda" else 2
    images = trial_images(size, batch)
    definition = Torch(network, torch.device("cpu"))
    if not network.whole:
        expected = None
    else:
        expected = definition(images[:2])
        pinned = ANSWERS.get((name, size))
        if pinned and answer_sha256(expected) != pinned:
            raise OnepassError(
                f"torch {torch.__version__} does not compute {name} exactly on this machine: its "
                "features would differ from those of others; use another version of torch, or "
                f"{name}:float"
            )
    for make in _candidates(network, size, device):
        try:
            engine = make()
            found = engine(images)
        except Exception as problem:  # an engine may raise anything
            _refuse(make.__name__, error_in_one_line(problem))
            continue
        if expected is None or np.array_equal(found[:2], expected):
            return engine
        _refuse(engine.name, f"it does not compute {name} exactly on this machine")
    return definition


def _candidates(
    network: FrozenNetwork, size: int, device: torch.device
) -> Iterator[Callable[[], Engine]]:
    """Yields functions that make engines for a device, the fastest first."""

    def openvino() -> Engine:
        from onepass.encoders.openvino_engine import OpenVINO

        return OpenVINO(network, size)

    def compiled() -> Engine:
        return Compiled(network, device)

    def plain() -> Engine:
        return Torch(network, device)

    if device.type == "cpu":
        if find_spec("openvino"):
            yield openvino
        else:
            _refuse("openvino", "pip install openvino makes them about three times as fast")
    if device.type == "cuda" and network.whole:
        yield compiled
    if device.type != "cpu":
        yield plain


def _refuse(engine: str, why: str) -> None:
    if engine not in _refused:
        _refused.add(engine)
        log.warning("%s is not used for encoders: %s", engine, why)


def trial_images(size: int, count: int) -> Array:
    """Returns images (count, size, size, 3) made by whole numbers alone: squares of black and
    white, which reach the clips, and a pattern without repetition, in turn."""
    row, column, channel = np.ogrid[:size, :size, :3]
    squares = 255 * ((row // 9 + column // 13 + channel) % 2)
    pattern = (7 * row * row + 13 * column * column + 5 * row * column + 97 * channel) % 251
    both = np.stack([squares, pattern]).astype(np.uint8)
    return both[np.arange(count) % 2]


def answer_sha256(found: Array) -> str:
    """Returns the hash of the sums of the last convolution."""
    return hashlib.sha256(np.ascontiguousarray(found[:, -HEAD:], "<f4").tobytes()).hexdigest()
