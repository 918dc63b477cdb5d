"""Networks by name. Adding one is one file and one import line in `nets/__init__.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from onepass.base import plugins
from onepass.base.errors import InputError
from onepass.base.registry import Registry

Shape = tuple[int, ...]
Takes = Literal["images", "vectors", "images and vectors"]
Make = Callable[[Shape], nn.Module]
Preprocess = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Network:
    """How a network is made, and what has to be known to use it; see `network`."""

    key: str
    make: Make
    takes: Takes
    preprocess: Preprocess | None
    initialises: bool

    def shape_given(self, shape: Shape) -> Shape:
        """The shape of a sample after the network's own preprocessing."""
        if self.preprocess is None:
            return shape
        return tuple(self.preprocess(torch.zeros(1, *shape)).shape[1:])

    def check_takes(self, shape: Shape) -> None:
        given = "vectors" if len(shape) == 1 else "images"
        if given not in self.takes:
            what = {"vectors": "feature vectors", "images": "images"}[given]
            raise InputError(f"net {self.key!r} takes {self.takes}, but the samples are {what}")


NETWORKS = Registry[Network]("net", plugins.NETWORKS)


def network(
    key: str,
    *,
    takes: Takes,
    preprocess: Preprocess | None = None,
    initialises: bool = False,
) -> Callable[[Make], Make]:
    """Registers a function from the shape of a sample to a module that gives (samples, features).

    Parameters
    ----------
    takes
        `images`, `vectors`, or `images and vectors`.
    preprocess
        From raw inputs (pixels / 255 or vectors, float, on any device) to what the network sees: a
        resize and ImageNet's constants, say. It is used in training, before augmentation, and in
        predicting, and stands in place of the learner's `mean` and `std`, which are then ignored.
        The function above is given the shape that comes out of it. It must be pure and compute
        with plain numbers: a captured step cannot copy tensors from the host.
    initialises
        The module comes with values of its own: pretrained ones, or drawn by the function from
        torch's global generator, which is then seeded by the learner's seed and put back
        afterwards. Without it only shapes are taken from the module, whatever its constructor
        did, and each layer is initialised as PyTorch does it; a layer for which there is no such
        rule is refused.
    """

    def register(make: Make) -> Make:
        NETWORKS.add(key, Network(key, make, takes, preprocess, initialises), defined=make)
        return make

    return register


def network_from_reference(reference: str) -> Network:
    """The network of a function given as `package.module:name`. One that was not registered takes
    whatever it takes, and keeps the values that it brings."""
    make = plugins.import_reference(reference)
    if not callable(make):
        raise InputError(f"net {reference!r} is no function from a sample's shape to a module")
    for known in NETWORKS.entries.values():
        if known.make is make:
            return known
    return Network(reference, make, "images and vectors", preprocess=None, initialises=True)
