"""Streams: in which order, and in which pieces, a dataset reaches the learner."""

from onepass.streams.base import Stream
from onepass.streams.blurry import Blurry
from onepass.streams.class_incremental import ClassIncremental
from onepass.streams.long_tail import LongTail
from onepass.streams.spec import STREAMS, make, parse

__all__ = ["STREAMS", "Blurry", "ClassIncremental", "LongTail", "Stream", "make", "parse"]
