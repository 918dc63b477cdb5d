"""`Encoder`: a frozen network, or several joined, as a function from samples to vectors."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from onepass.base import devices
from onepass.base.checksum import sha256
from onepass.base.errors import DataError, InputError
from onepass.base.text import quoted
from onepass.encoders import images
from onepass.encoders.registry import Network, canonical, make_network
from onepass.functional.grid import standardise

CHUNK = {"cpu": 32, "cuda": 256}  # samples that are prepared and encoded together
Damaged = list[tuple[int, DataError]]


class Features(NamedTuple):
    """Vectors (n, d), and the index of each in its batch."""

    indices: list[int]
    vectors: Tensor


class Encoder:
    """A frozen encoder: `encode` returns a float32 vector for each sample.

    An encoder of whole numbers (`exact`) returns the same bits on every machine, for a sample alone
    or among others. Other encoders do so on one kind of processor in one engine; on a GPU, by one
    padded batch shape, with differences of rounding.

    Parameters
    ----------
    name
        One of `onepass list encoders`, or several joined by `+`; `package.module:factory` is a
        module of your own. `NAME@260` sets the size of images, `NAME^` joins earlier layers, and
        `+mirror` at the end adds the features of mirror images.
    device
        auto, cpu, mps, cuda or cuda:N.

    >>> encoder = Encoder("text:hash")
    >>> encoder.encode(["one text", "another text"]).shape
    torch.Size([2, 2048])
    """

    def __init__(self, name: str, device: str = "auto") -> None:
        found = canonical(name)
        self.name, self.device = str(found), device
        self.mirror = found.mirror
        place = devices.resolve_device(device)
        self._chunk = CHUNK.get(place.type, CHUNK["cpu"])
        self._networks = [make_network(part, place) for part in found.parts]
        self._lock = threading.Lock()  # an engine serves one thread at a time
        kinds = {network.takes for network in self._networks}
        if len(kinds) > 1 or (self.mirror and "texts" in kinds):
            why = "joins images and texts" if len(kinds) > 1 else "has texts, which have no mirror"
            raise InputError(f"the encoder {quoted(name)} {why}")
        self.takes = self._networks[0].takes

    def __repr__(self) -> str:
        return f"<Encoder {self.name}: {self.takes} to {self.dimension} features>"

    def __reduce__(self) -> tuple[type[Encoder], tuple[str, str]]:
        return Encoder, (self.name, self.device)  # weights are never pickled

    @property
    def dimension(self) -> int:
        """The number of features."""
        return sum(sum(network.widths) for network in self._networks)

    @property
    def exact(self) -> bool:
        """True if the features have the same bits on every machine."""
        return all(network.exact for network in self._networks)

    @property
    def engine(self) -> str:
        """The name of the library that computes: openvino, torch, ..."""
        return " ".join(dict.fromkeys(network.engine for network in self._networks))

    @cached_property
    def sha256(self) -> str:
        """The hash of weights, preprocessing and options: what the features depend on."""
        return sha256([[network.facts for network in self._networks], self.mirror])

    def identity(self) -> dict[str, str | int | bool]:
        """Returns what a record of features must hold: name, hash, dimension, and whether the
        features are exact; of other encoders also the engine and the kind of processor."""
        known: dict[str, str | int | bool] = {
            "encoder": self.name,
            "sha256": self.sha256,
            "dimension": self.dimension,
            "exact": self.exact,
        }
        if not self.exact:
            known |= {"engine": self.engine, "processor": self._processor()}
        return known

    def _processor(self) -> str:
        place = devices.resolve_device(self.device)
        return torch.cuda.get_device_name(place) if place.type == "cuda" else platform.machine()

    def encode(
        self,
        batch: Any,
        progress: Callable[[int], object] | None = None,
        damaged: Damaged | None = None,
    ) -> Tensor:
        """Returns the features of a batch (n, d) as float32 on the CPU.

        A batch is a list of paths, Pillow images or uint8 arrays (c, h, w), an array (n, c, h, w),
        or a list of texts. `progress` is called with the number of samples done since its last
        call. Images that cannot be decoded are appended to `damaged`, as index and error, and left
        out; without such a list, the first raises its DataError.
        """
        found: list[Tensor] = []
        for features in self._features(batch, damaged):
            found.append(features.vectors)
            if progress is not None:
                progress(len(features.indices))
        return torch.cat(found) if found else torch.empty(0, self.dimension)

    def _features(self, batch: Any, damaged: Damaged | None) -> Iterator[Features]:
        if self.takes == "texts":
            texts = _as_texts(batch)
            for first in range(0, len(texts), self._chunk):
                chunk = texts[first : first + self._chunk]
                vectors = self._join(lambda network, chunk=chunk: network.encode(chunk))  # type: ignore[misc]
                yield Features(list(range(first, first + len(chunk))), vectors)
            return
        sizes = sorted({network.size for network in self._networks})
        for prepared in images.prepare(images.as_images(batch), sizes, self._chunk, damaged):
            pixels = prepared.pixels
            vectors = self._join(lambda network, pixels=pixels: self._see(network, pixels))  # type: ignore[misc]
            yield Features(prepared.indices, vectors)

    def _see(self, network: Network, pixels: images.Pixels) -> Tensor:
        """Returns a network's features of images; with `mirror`, the mean of each image's and its
        mirror image's. Whole numbers are added instead, so that they stay whole."""
        seen = pixels[network.size]
        features = network.encode(seen)
        if self.mirror:
            features += network.encode(np.ascontiguousarray(seen[:, :, ::-1]))
            features *= 1 if network.exact else 0.5
        return features

    def _join(self, encode: Callable[[Network], Tensor]) -> Tensor:
        """Returns the features of all networks; several outputs are standardised one by one."""
        with self._lock, torch.no_grad():
            outputs = [
                output
                for network in self._networks
                for output in torch.split(encode(network), network.widths, dim=1)
            ]
        if len(outputs) > 1:
            outputs = [standardise(output) for output in outputs]
        return torch.cat(outputs, dim=1)


def _as_texts(batch: Any) -> Sequence[str]:
    """Returns a batch of texts as a list; raises an InputError for anything else."""
    if isinstance(batch, str):
        raise InputError("one text must be given as a list, [text]")
    values = batch.tolist() if isinstance(batch, np.ndarray) else batch
    if not isinstance(values, list | tuple) or not values:
        raise InputError(f"expected a list of texts, not {quoted(batch)}")
    for index, text in enumerate(values):
        if not isinstance(text, str):
            raise InputError(f"expected a list of texts; item {index} is {quoted(text)}")
    return values
