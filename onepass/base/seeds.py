"""Independent random generators from one seed. The global generators are left as they were."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Returns a new generator whose seed comes from `seed` and `purpose`, so that draws for one
    purpose never change those for another.

    >>> import torch
    >>> a, b = generator(0, "draws"), generator(0, "augmentation")
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).any())
    False
    """
    import torch

    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    made = torch.Generator(device=device)
    made.manual_seed(int.from_bytes(digest[:8], "little") >> 1)  # fits into an int64
    return made


def permutation(count: int, rng: torch.Generator) -> torch.Tensor:
    """Returns 0 … count - 1 in random order."""
    import torch

    return torch.randperm(count, generator=rng)


@contextmanager
def seeded_global_generator(rng: torch.Generator) -> Iterator[None]:
    """Seeds torch's global CPU generator by one draw from `rng`, for a body that cannot be given a
    generator; restores its state afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]):  # saves and restores the CPU generator only
        seed = int(torch.randint(2**62, (), generator=rng))
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too
        yield
