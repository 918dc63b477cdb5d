"""The grammar of encoders' names.

    NAME      = PART + PART + ... [+mirror]
    PART      = KEY [:VARIANT] [@SIZE] [^]

`efficientnet-lite0@192^+efficientnet-lite2+mirror` joins two networks. `@` sets the size of the
images, `^` joins earlier layers, and `+mirror` adds the features of each image's mirror image.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from onepass.base.errors import InputError
from onepass.base.text import quoted

MIRROR = "mirror"
SMALLEST, LARGEST = 32, 512  # pixels; sums over the places of larger images could pass 2^24
PART = re.compile(r"(?P<key>[^\s:@^+]+)(:(?P<variant>[^\s:@^+]+))?(@(?P<size>[0-9]+))?(?P<hat>\^)?")


class Part(NamedTuple):
    """One network of a name: `module:factory`, or a registered key with its variant."""

    key: str
    variant: str = ""
    size: int | None = None
    earlier: bool = False

    @property
    def base(self) -> str:
        return f"{self.key}:{self.variant}" if self.variant else self.key

    def __str__(self) -> str:
        size = "" if self.size is None else f"@{self.size}"
        return f"{self.base}{size}{'^' if self.earlier else ''}"


class Parts(NamedTuple):
    """The networks of a name, and whether mirror images are encoded too."""

    parts: tuple[Part, ...]
    mirror: bool

    def __str__(self) -> str:
        return "+".join([*map(str, self.parts), *([MIRROR] if self.mirror else [])])


def parse_name(name: str) -> Parts:
    """Returns the parts of an encoder's name. Raises an InputError if it does not follow the
    grammar.

    >>> parse_name("efficientnet-lite2:float@192^+mirror")
    Parts(parts=(Part(key='efficientnet-lite2', variant='float', size=192, earlier=True),),
          mirror=True)
    """
    if not isinstance(name, str):
        raise InputError(f"an encoder's name must be text, not {quoted(name)}")
    words = name.split("+")
    mirror = words[-1] == MIRROR
    parts = tuple(_parse_part(word, name) for word in (words[:-1] if mirror else words))
    if not parts:
        raise InputError("+mirror follows the name of an encoder: efficientnet-lite0+mirror")
    if twice := [str(part) for part in parts if parts.count(part) > 1]:
        raise InputError(f"the encoder {quoted(name)} joins {twice[0]} with itself")
    return Parts(parts, mirror)


def _parse_part(word: str, name: str) -> Part:
    found = PART.fullmatch(word)
    if found is None or word == MIRROR:
        raise InputError(
            f"{quoted(name)} is not an encoder's name: expected KEY, KEY:VARIANT, KEY@SIZE or "
            "KEY^, joined by +, and perhaps +mirror at the end"
        )
    size = int(found["size"][:9]) if found["size"] else None
    if size is not None and not SMALLEST <= size <= LARGEST:
        raise InputError(
            f"the size of images in {quoted(name)} must lie between {SMALLEST} and {LARGEST}"
        )
    return Part(found["key"], found["variant"] or "", size, found["hat"] is not None)
