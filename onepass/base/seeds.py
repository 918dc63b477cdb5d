"""One seed, several independent generators; the global generator is never touched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for each purpose, so that using one never moves another.

    >>> import torch
    >>> a, b = generator(0, "draws"), generator(0, "augmentation")
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).any())
    False
    """
    import torch

    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    made = torch.Generator(device=device)
    made.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return made


def permutation(count: int, rng: torch.Generator) -> torch.Tensor:
    import torch

    return torch.randperm(count, generator=rng)


@contextmanager
def seeded_global_generator(rng: torch.Generator) -> Iterator[None]:
    """For code that can draw from the global generator only: inside, one draw from ours has seeded
    it; afterwards it is as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        seed = int(torch.randint(2**62, (), generator=rng))
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the GPU's too
        yield
