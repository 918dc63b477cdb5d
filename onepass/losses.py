"""Pure functions of logits that two or more methods share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def one_hot(y: Tensor, classes: int) -> Tensor:
    """A mask (samples, classes) that is true at each sample's own class."""
    return y.unsqueeze(1) == torch.arange(classes, device=y.device)


def sample_cross_entropy(logits: Tensor, y: Tensor, among: Tensor) -> Tensor:
    """-log of e^{o_y} / sum e^{o_c} over the classes `among` (a mask) and y itself.

    >>> two_of_three = torch.tensor([True, True, False])
    >>> sample_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), two_of_three)
    tensor([0.6931])
    """
    return sample_cross_entropy_against(logits, y, among.log())


def sample_cross_entropy_against(logits: Tensor, y: Tensor, log_scale: Tensor) -> Tensor:
    """-log of e^{o_y} / (e^{o_y} + sum_{c != y} e^{o_c + log_scale_c}), with scales for all samples
    or for each. The own class takes part unscaled, so the value is finite for any finite logits,
    however many of the scales are minus infinity.
    """
    others = log_scale.expand_as(logits).scatter(1, y.unsqueeze(1), 0)
    return F.cross_entropy(logits + others, y, reduction="none")


def fractions(weight: Tensor) -> Tensor:
    """Weights that add up to 1; all 0 where nothing has weight."""
    return weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)


def mean(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean; 0 where nothing has weight."""
    return torch.dot(values, fractions(weight.to(values.dtype)))


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor, among: Tensor) -> Tensor:
    """Mean cross-entropy with the softmax over the classes `among`."""
    return mean(sample_cross_entropy(logits, y, among), weight)


def supervised_contrastive(
    z: Tensor, y: Tensor, weight: Tensor, temperature: float, anchors: Tensor | None = None
) -> Tensor:
    """Mean over anchors i of -1/|P(i)| sum_{p in P(i)} log [e^{z_i z_p/t}
    / sum_{a != i} e^{z_i z_a/t}],
    where P(i) are the other samples of i's class.

    `z` has unit rows. Samples of weight 0 are neither anchors nor compared with; an anchor without
    a positive adds nothing. `anchors` are weights of their own, where only some samples are.

    >>> same = torch.ones(4, 1)
    >>> float(supervised_contrastive(same, torch.tensor([0, 0, 1, 1]), torch.ones(4), 0.1).exp())
    3.0
    """
    others = (weight > 0) & ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    similarity = (z @ z.T / temperature).masked_fill(~others, -torch.inf)
    positives = others & (y.unsqueeze(1) == y)
    log_share = similarity.log_softmax(dim=1).masked_fill(~positives, 0)
    count = positives.sum(dim=1)
    per_anchor = -log_share.sum(dim=1) / count.clamp(min=1)
    return mean(per_anchor, (weight if anchors is None else weight * anchors) * (count > 0))
