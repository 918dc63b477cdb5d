"""The variant of a run: its choices that differ from the defaults, without the method. Dataset,
memory, seed and device are not in it either, because tables show them in columns of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from typing import Self

PRESET = "preset"
REVISION = "revision"
NOTE = "note"
# An optional name and "=", then a quoted value or one without spaces
WORD = re.compile(r'(?:([^\W\d]\w*)=)?("(?:[^"\\]|\\.)*"(?= |$)|[^ ]*)')
FOLDER = "in"  # the name of an entry that tables add to rows whose runs differ only in their folder


class Variant(dict[str, str]):
    """The names and values of a variant, in display order: the preset, the settings, then the
    options of the run. `str` gives the text that tables and files hold.

    >>> variant = Variant(preset="tuned", lr="1e-3", tasks="2")
    >>> str(variant), str(variant.without("lr"))
    ('tuned lr=1e-3 tasks=2', 'tuned tasks=2')
    """

    def __str__(self) -> str:
        return " ".join(_words(name, value) for name, value in self.items())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the variant whose text this is, as results hold it. A first word without "=" is
        the preset. Early versions did not quote values: there, a later word without "=" continues
        the value before it, or starts a note if that value ends in a comma.

        >>> Variant.parse('tuned label="sepal length" batch=5')
        {'preset': 'tuned', 'label': 'sepal length', 'batch': '5'}
        """
        found = cls()
        last = ""
        for name, value in WORD.findall(text):
            if name:
                last, found[name] = name, _unquoted(value)
            elif value and not last:
                last, found[PRESET] = PRESET, value
            elif value and last != NOTE and found[last].endswith(","):
                last, found[NOTE] = NOTE, value
            elif value:
                found[last] += f" {value}"
        return found

    def without(self, *names: str) -> Self:
        """Returns the entries except those of these names."""
        return type(self)((name, value) for name, value in self.items() if name not in names)

    def only(self, names: Container[str]) -> Self:
        """Returns the entries of these names."""
        return type(self)((name, value) for name, value in self.items() if name in names)

    def beyond(self, shared: Self) -> Self:
        """Returns the entries of this variant that `shared` lacks or has with another value."""
        pairs = ((name, value) for name, value in self.items() if shared.get(name) != value)
        return type(self)(pairs)


def shared(variants: Sequence[Variant]) -> Variant:
    """Returns the entries that all of several variants share, so that a table can leave them out of
    its rows. The result is empty if there are fewer than two variants.

    >>> shared([Variant(lr="1", batch="5"), Variant(lr="2", batch="5")])
    {'batch': '5'}
    """
    if len(variants) < 2:
        return Variant()
    first, *others = variants
    pairs = first.items()
    return Variant(pair for pair in pairs if all(pair in other.items() for other in others))


def _words(name: str, value: str) -> str:
    """Returns the text of an entry, quoted if `parse` could not read it otherwise."""
    if name in (PRESET, NOTE):
        return value
    if name == FOLDER:
        return f"{name} {value}"
    ambiguous = value.startswith('"') or any(map(str.isspace, value))
    return f"{name}={json.dumps(value) if ambiguous else value}"


def _unquoted(value: str) -> str:
    """Returns the content of a quoted value; other values as they are."""
    try:
        return str(json.loads(value)) if value.startswith('"') else value
    except ValueError:
        return value
