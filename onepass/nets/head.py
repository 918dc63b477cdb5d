"""A linear head that grows. Its rows are classes in order of arrival; spare rows wait behind."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FIRST_CAPACITY = 16  # rows


class Head(nn.Module):
    """One row of weights and a bias per class, with spare rows up to a capacity.

    A row that is not free (a spare one, or any row of a frozen head) is put back to its held
    value after each optimiser step. Masking its gradient would not be enough: Adam's coupled
    weight decay moves a parameter by about the learning rate per step even at zero gradient.
    """

    for_training = (
        "head.free",
        "head.held_weight",
        "head.held_bias",
    )  # no part of what it computes

    free: Tensor
    held_weight: Tensor
    held_bias: Tensor

    def __init__(self, features: int, capacity: int, rng: torch.Generator) -> None:
        super().__init__()
        weight, bias = _birth(capacity, features, rng)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)
        # Not saved: which rows are free follows from the classes, what is held from the weights.
        self.register_buffer("free", torch.zeros(capacity, dtype=torch.bool), persistent=False)
        self.register_buffer("held_weight", weight.clone(), persistent=False)
        self.register_buffer("held_bias", bias.clone(), persistent=False)

    @property
    def capacity(self) -> int:
        return len(self.bias)

    @property
    def trainable(self) -> list[nn.Parameter]:
        return [one for one in (self.weight, self.bias) if one.requires_grad]

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)  # (samples, capacity)

    def grow(self, capacity: int, rng: torch.Generator) -> None:
        """More spare rows; those that are there keep their values. Makes new parameters."""
        weight, bias = _birth(capacity - self.capacity, self.weight.shape[1], rng)
        self.extend(weight.to(self.weight.device), bias.to(self.weight.device))

    def extend(self, weight: Tensor, bias: Tensor) -> None:
        """These rows behind those that are there. Makes new parameters."""
        self.free = F.pad(self.free, (0, len(bias)))
        self.held_weight = torch.cat([self.held_weight, weight])
        self.held_bias = torch.cat([self.held_bias, bias])
        weight = torch.cat([self.weight.detach(), weight.to(self.weight.dtype)])
        bias = torch.cat([self.bias.detach(), bias])
        self.weight = nn.Parameter(weight, self.weight.requires_grad)
        self.bias = nn.Parameter(bias, self.bias.requires_grad)

    @torch.no_grad()
    def remember(self) -> None:
        """What rows that are not free are put back to: the values of now."""
        self.held_weight.copy_(self.weight)
        self.held_bias.copy_(self.bias)

    def hold(self) -> None:
        """From now on no row moves."""
        self.remember()
        self.free.zero_()

    def restore(self) -> None:
        """Puts back the rows that are not free, without asking on the host which they are."""
        free, weight, bias = self.free, self.weight.data, self.bias.data
        torch.where(free.view(-1, 1), weight, self.held_weight, out=weight)
        torch.where(free, bias, self.held_bias, out=bias)


class CosineHead(Head):
    """Logits are scaled cosines between features and rows; the bias takes no part, nor is it
    trained."""

    def __init__(self, features: int, capacity: int, rng: torch.Generator, scale: float) -> None:
        super().__init__(features, capacity, rng)
        self.bias.requires_grad_(False)
        self.scale: float | Tensor = scale

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * self.cosines(features)

    def cosines(self, features: Tensor) -> Tensor:
        """(samples, capacity)."""
        return F.linear(F.normalize(features), F.normalize(self.weight))


class ScaledCosineHead(CosineHead):
    """The scale is trained too."""

    def __init__(self, features: int, capacity: int, rng: torch.Generator, scale: float) -> None:
        super().__init__(features, capacity, rng, scale)
        self.scale = nn.Parameter(torch.tensor(scale))


def cosine_head(features: int, rng: torch.Generator, scale: float = 10.0) -> CosineHead:
    """Returns a head whose logits are `scale` times the cosines between features and rows."""
    return CosineHead(features, FIRST_CAPACITY, rng, scale)


def _birth(rows: int, features: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Drawn row by row, so that a row's birth value does not depend on how the head grew."""
    bound = 1 / math.sqrt(features)
    drawn = (2 * torch.rand(rows, features + 1, generator=rng) - 1) * bound  # bias: last column
    return drawn[:, :-1].contiguous(), drawn[:, -1].contiguous()
