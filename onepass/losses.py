"""Pure functions of logits that two or more methods share."""

from __future__ import annotations

import torch
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
    others = (among & ~own) if among.ndim == 2 else (among.unsqueeze(0) & ~own)
    scaled = logits if log_scale is None else logits + log_scale
    competing = torch.where(others, scaled, -torch.inf)
    competing = torch.where(own, logits, competing)
    own_logit = logits.gather(1, y.unsqueeze(1)).squeeze(1)
    return own_logit - competing.logsumexp(dim=1)


def mean(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean; 0 where nothing has weight."""
    return (values * weight).sum() / weight.sum().clamp(min=torch.finfo(values.dtype).tiny)


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor, among: Tensor) -> Tensor:
    """Mean cross-entropy with the softmax over the classes `among`."""
    return mean(-log_likelihood(logits, y, among), weight)
