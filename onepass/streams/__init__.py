"""Streams: in which order, and in which pieces, a dataset reaches the learner."""

from onepass.streams.base import Stream
from onepass.streams.class_incremental import ClassIncremental

STREAMS = {"class-incremental": ClassIncremental}

__all__ = ["STREAMS", "ClassIncremental", "Stream"]
