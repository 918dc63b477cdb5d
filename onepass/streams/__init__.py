"""Streams: in which order, and in which pieces, a dataset reaches the learner. A stream of your own
is one file with `@stream` and one line here."""

from onepass.streams.base import Stream
from onepass.streams.blurry import Blurry
from onepass.streams.class_incremental import ClassIncremental
from onepass.streams.long_tail import LongTail
from onepass.streams.registry import STREAMS, stream
from onepass.streams.spec import asked, filled, make, parse

__all__ = [
    "STREAMS",
    "Blurry",
    "ClassIncremental",
    "LongTail",
    "Stream",
    "asked",
    "filled",
    "make",
    "parse",
    "stream",
]
