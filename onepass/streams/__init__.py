"""Streams: the order and the batches in which a dataset reaches the learner. From the rest of
onepass, modules here import only `data` and `base`. A new stream is one file with `@stream` and one
import here.
"""

from typing import TYPE_CHECKING

from onepass.base.lazy import attach

if TYPE_CHECKING:
    from onepass.streams.base import Stream as Stream
    from onepass.streams.blurry import Blurry as Blurry
    from onepass.streams.class_incremental import ClassIncremental as ClassIncremental
    from onepass.streams.long_tail import LongTail as LongTail
    from onepass.streams.registry import STREAMS as STREAMS
    from onepass.streams.registry import stream as stream
    from onepass.streams.spec import make_stream as make_stream
    from onepass.streams.spec import parse_stream as parse_stream
    from onepass.streams.spec import parse_with_options as parse_with_options
    from onepass.streams.spec import with_defaults as with_defaults

__getattr__, __all__ = attach(__name__)
