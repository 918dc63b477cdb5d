"""Class heads that grow. Each class has a row, in order of arrival. Spare rows without a class come
last."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FIRST_CAPACITY = 16  # rows of a new head


class Head(nn.Module):
    """A linear class head: a row of weights and a bias per class, and spare rows up to a capacity.

    Rows in the mask `free` train. After each optimiser step, `restore` resets the others to their
    held values: spare rows, and the rows of a frozen head. Masking their gradients is not enough.
    With coupled weight decay, Adam moves a parameter by about the learning rate per step even if
    its gradient is zero.
    """

    for_training = (
        "head.free",
        "head.held_weight",
        "head.held_bias",
    )  # buffers that the forward pass does not use

    free: Tensor
    held_weight: Tensor
    held_bias: Tensor

    def __init__(self, features: int, capacity: int, rng: torch.Generator) -> None:
        super().__init__()
        weight, bias = _initial_rows(capacity, features, rng)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)
        # Not saved: the classes determine the free rows, and the weights the held values.
        self.register_buffer("free", torch.zeros(capacity, dtype=torch.bool), persistent=False)
        self.register_buffer("held_weight", weight.clone(), persistent=False)
        self.register_buffer("held_bias", bias.clone(), persistent=False)

    @property
    def capacity(self) -> int:
        return len(self.bias)

    @property
    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in (self.weight, self.bias) if parameter.requires_grad]

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)  # (samples, capacity)

    def grow(self, capacity: int, rng: torch.Generator) -> None:
        """Adds spare rows up to a capacity. Existing rows keep their values. Weight and bias become
        new parameters, which the optimiser does not know yet."""
        weight, bias = _initial_rows(capacity - self.capacity, self.weight.shape[1], rng)
        self.extend(weight.to(self.weight.device), bias.to(self.weight.device))

    def extend(self, weight: Tensor, bias: Tensor) -> None:
        """Appends rows with these values. They do not train until `free` is set: `restore` resets
        them after each optimiser step. Weight and bias become new parameters."""
        self.free = F.pad(self.free, (0, len(bias)))
        self.held_weight = torch.cat([self.held_weight, weight])
        self.held_bias = torch.cat([self.held_bias, bias])
        weight = torch.cat([self.weight.detach(), weight.to(self.weight.dtype)])
        bias = torch.cat([self.bias.detach(), bias])
        self.weight = nn.Parameter(weight, self.weight.requires_grad)
        self.bias = nn.Parameter(bias, self.bias.requires_grad)

    @torch.no_grad()
    def remember(self) -> None:
        """Makes the current values the held ones, to which `restore` resets rows."""
        self.held_weight.copy_(self.weight)
        self.held_bias.copy_(self.bias)

    def hold(self) -> None:
        """Freezes all rows at their current values."""
        self.remember()
        self.free.zero_()

    def restore(self) -> None:
        """Resets the rows that are not free to their held values, without host synchronisation."""
        free, weight, bias = self.free, self.weight.data, self.bias.data
        torch.where(free.view(-1, 1), weight, self.held_weight, out=weight)
        torch.where(free, bias, self.held_bias, out=bias)


class CosineHead(Head):
    """A head whose logits are scaled cosines between features and rows. Its bias is unused and does
    not train."""

    def __init__(self, features: int, capacity: int, rng: torch.Generator, scale: float) -> None:
        super().__init__(features, capacity, rng)
        self.bias.requires_grad_(False)
        self.scale: float | Tensor = scale

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * self.cosines(features)

    def cosines(self, features: Tensor) -> Tensor:
        """Returns the cosines between features and rows, (samples, capacity)."""
        return F.linear(F.normalize(features), F.normalize(self.weight))


class ScaledCosineHead(CosineHead):
    """A cosine head whose scale is trained, from the given value on."""

    def __init__(self, features: int, capacity: int, rng: torch.Generator, scale: float) -> None:
        super().__init__(features, capacity, rng, scale)
        self.scale = nn.Parameter(torch.tensor(scale))


def cosine_head(features: int, rng: torch.Generator, scale: float = 10.0) -> CosineHead:
    """Returns a head whose logits are `scale` times the cosines between features and rows."""
    return CosineHead(features, FIRST_CAPACITY, rng, scale)


def _initial_rows(rows: int, features: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns initial weights and biases, drawn row by row, so that a row's values do not depend on
    how often the head grew."""
    bound = 1 / math.sqrt(features)
    drawn = (2 * torch.rand(rows, features + 1, generator=rng) - 1) * bound  # bias: last column
    return drawn[:, :-1].contiguous(), drawn[:, -1].contiguous()
