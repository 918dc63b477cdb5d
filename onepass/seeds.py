"""One seed, several independent generators; the global generator is never touched."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for each purpose, so that using one never moves another.

    >>> a, b = generator(0, "draws"), generator(0, "augmentation")
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).any())
    False
    """
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    made = torch.Generator(device=device)
    made.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return made


def permutation(count: int, rng: torch.Generator) -> torch.Tensor:
    return torch.randperm(count, generator=rng)
