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
    """A registered network. `key` is its name, and `make` its function from the shape of a sample
    to a module. `network` documents the other fields."""

    key: str
    make: Make
    takes: Takes
    preprocess: Preprocess | None
    initialises: bool

    def shape_given(self, shape: Shape) -> Shape:
        """Returns the shape that `make` gets: that of a sample after the network's own
        preprocessing."""
        if self.preprocess is None:
            return shape
        return tuple(self.preprocess(torch.zeros(1, *shape)).shape[1:])

    def check_takes(self, shape: Shape) -> None:
        """Raises an InputError if the network does not take samples of this shape."""
        given = "vectors" if len(shape) == 1 else "images"
        if given not in self.takes:
            what = {"vectors": "feature vectors", "images": "images"}[given]
            raise InputError(
                f"net {self.key!r} takes {self.takes}, but the samples are {what}: choose another "
                "net"
            )


NETWORKS = Registry[Network]("net", plugins.NETWORKS)


def network(
    key: str,
    *,
    takes: Takes,
    preprocess: Preprocess | None = None,
    initialises: bool = False,
) -> Callable[[Make], Make]:
    """Returns a decorator that registers a function as a network. The function takes the shape of a
    sample and returns a module from samples to (samples, features).

    Parameters
    ----------
    key
        The name of the network, as in `net="mlp"`.
    takes
        The samples that it takes: `images`, `vectors`, or `images and vectors`.
    preprocess
        A function from raw inputs (pixels / 255 or vectors, float, on any device) to the network's
        inputs, such as a resize and ImageNet's constants. It replaces the learner's `mean` and
        `std`, in training before augmentation and in predicting. The registered function gets the
        shape of its output. `preprocess` must be pure and use plain numbers, because a captured
        step cannot copy tensors from the host.
    initialises
        Whether the module keeps the values that its constructor sets: pretrained ones, or draws
        from torch's global generator, which is seeded by the learner's seed and restored
        afterwards. If false, only the module's shapes are used, and each layer is initialised as in
        PyTorch. A layer without a rule of initialisation is an error.
    """

    def register(make: Make) -> Make:
        NETWORKS.add(key, Network(key, make, takes, preprocess, initialises), defined=make)
        return make

    return register


def network_from_reference(reference: str) -> Network:
    """Returns the network of a function given as `package.module:name`. A function that is not
    registered is assumed to take all samples, and its module keeps its constructor's values."""
    make = plugins.import_reference(reference)
    if not callable(make):
        raise InputError(
            f"net {reference!r} cannot be called; it must be a function that takes a sample's "
            "shape and returns a module"
        )
    for known in NETWORKS.entries.values():
        if known.make is make:
            return known
    return Network(reference, make, "images and vectors", preprocess=None, initialises=True)
