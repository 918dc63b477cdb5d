"""Encoders: frozen networks as functions from samples to vectors, each with its preprocessing and
hash. From the rest of onepass, modules here import only `base`, `functional.grid`, and `data` for
decoding images. A new encoder is one file with `@encoder` and one import here.
"""

from typing import TYPE_CHECKING

from onepass.base.lazy import attach

if TYPE_CHECKING:
    from onepass.encoders.efficientnet import lite0 as make_lite0  # noqa: F401 - registers it
    from onepass.encoders.encoder import Encoder as Encoder
    from onepass.encoders.modules import timm_model as make_timm  # noqa: F401
    from onepass.encoders.registry import ENCODERS as ENCODERS
    from onepass.encoders.registry import encoder as encoder
    from onepass.encoders.texts import text as make_text  # noqa: F401

__getattr__, __all__ = attach(__name__)
