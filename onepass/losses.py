"""Pure functions of logits that two or more methods share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def one_hot(y: Tensor, classes: int) -> Tensor:
    """A mask (samples, classes) that is true at each sample's own class."""
    return y.unsqueeze(1) == torch.arange(classes, device=y.device)


def log_likelihood(
    logits: Tensor, y: Tensor, among: Tensor, log_scale: Tensor | None = None
) -> Tensor:
    """log of e^{o_y} / sum e^{o_c + log_scale_c} over the classes `among` and y itself.

    `among` is a mask over classes, for all samples or for each. The own class always takes part,
    unscaled, so the value is finite for any finite logits, whatever the mask and however many of
    the scales are minus infinity.

    >>> log_likelihood(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([True, True, False]))
    tensor([-0.6931])
    """
    own = one_hot(y, logits.shape[1])
    scaled = logits if log_scale is None else torch.where(own, logits, logits + log_scale)
    competing = scaled.masked_fill(~(among | own), -torch.inf)
    return -F.cross_entropy(competing, y, reduction="none")


def fractions(weight: Tensor) -> Tensor:
    """Weights that add up to 1; all 0 where nothing has weight."""
    return weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)


def mean(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean; 0 where nothing has weight."""
    return torch.dot(values, fractions(weight.to(values.dtype)))


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor, among: Tensor) -> Tensor:
    """Mean cross-entropy with the softmax over the classes `among`."""
    return mean(-log_likelihood(logits, y, among), weight)
