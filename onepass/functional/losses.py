"""Losses: pure functions of logits or of unit features.

A loss with `sample` in its name returns a value for each sample; the others return their mean,
weighted by the weights of the samples. o are the logits of a sample and y its class.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.parts import Output


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Returns a mask (n, C) that is true at each sample's own class."""
    return y.unsqueeze(1) == torch.arange(classes, device=y.device)


def sample_cross_entropy(out: Output, among: Tensor) -> Tensor:
    """Returns the cross-entropy of each sample (n), -log(e^{o_y} / sum_c e^{o_c}), where c runs
    over the classes `among` (a mask) and y itself.

    >>> even = Output(torch.zeros(1, 3), torch.tensor([0]), torch.ones(1))
    >>> sample_cross_entropy(even, torch.tensor([True, True, False]))
    tensor([0.6931])
    """
    return scaled_sample_cross_entropy(out, among.log())


def scaled_sample_cross_entropy(out: Output, log_scale: Tensor) -> Tensor:
    """Returns the cross-entropy of each sample (n) with a scale on each other class:
    -log(e^{o_y} / (e^{o_y} + sum_{c != y} e^{o_c + log_scale_c})).

    `log_scale` is (C), or (n, C) to differ between samples.

    The sample's own class is unscaled. So the loss is finite for finite logits even if every scale
    is minus infinity (the logarithm of a mask).
    """
    others = log_scale.expand_as(out.logits).scatter(1, out.y.unsqueeze(1), 0)  # (n, C)
    return F.cross_entropy(out.logits + others, out.y, reduction="none")


def scaled_sample_cross_entropies(out: Output, log_scales: Tensor) -> Tensor:
    """Returns `scaled_sample_cross_entropy` for k scales (k, n, C) at once, as (k, n)."""
    y = out.y.expand(log_scales.shape[:2])  # (k, n)
    logits = out.logits + log_scales.scatter(2, y.unsqueeze(2), 0)  # (k, n, C)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)


def normalised_weights(weight: Tensor) -> Tensor:
    """Returns the weights divided by their sum; all 0 if no sample has weight."""
    return weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)


def mean(values: Tensor, weight: Tensor) -> Tensor:
    """Returns the weighted mean; 0 if no sample has weight."""
    return torch.dot(values, normalised_weights(weight.to(values.dtype)))


def cross_entropy(out: Output, among: Tensor) -> Tensor:
    """Returns the mean cross-entropy with the softmax over the classes `among` (a mask) and each
    sample's own class."""
    return mean(sample_cross_entropy(out, among), out.weight)


def distillation(out: Output, taught: Tensor, among: Tensor, temperature: float) -> Tensor:
    """Returns the distillation loss at the temperature T: T^2 times the mean of
    KL(softmax(taught / T) || softmax(o / T)).

    `taught` (n, C) are the teacher's logits. Both softmaxes run over the classes `among` (a mask).
    The loss is 0 if the mask is empty.

    >>> among, taught = torch.tensor([True, True, False]), torch.tensor([[0.0, 0.0, 9.0]])
    >>> sure = Output(torch.tensor([[2.0, 0.0, 5.0]]), torch.tensor([2]), torch.ones(1))
    >>> distillation(sure, taught, among, temperature=2.0)  # 4 (log(1 + e) - 1/2 - log 2)
    tensor(0.4805)
    """
    absent = ~among
    own = (out.logits / temperature).masked_fill(absent, -torch.inf).log_softmax(dim=1)
    theirs = (taught / temperature).masked_fill(absent, -torch.inf).log_softmax(dim=1)
    # an absent class has probability 0 in both and adds nothing, but 0 * -inf would be NaN
    gap = (theirs - own).masked_fill(absent, 0)
    divergence = (theirs.exp().masked_fill(absent, 0) * gap).sum(dim=1)  # (n)
    return temperature**2 * mean(divergence, out.weight)


def supervised_contrastive(
    z: Tensor, y: Tensor, weight: Tensor, temperature: float, anchors: Tensor | None = None
) -> Tensor:
    """Returns the supervised contrastive loss at the temperature t, the mean over anchors i of
    -1/|P(i)| sum_{p in P(i)} log [e^{z_i z_p/t} / sum_{a != i} e^{z_i z_a/t}],
    where P(i), the positives, are the other samples of i's class.

    `z` (n, d) holds features of length 1. Samples of weight 0 are neither anchors nor contrasted
    with. The mean leaves out anchors without a positive. `anchors` (n) multiplies the weights of
    anchors, for example by 0 for samples that are none.

    >>> same = torch.ones(4, 1)
    >>> float(supervised_contrastive(same, torch.tensor([0, 0, 1, 1]), torch.ones(4), 0.1).exp())
    3.0
    """
    others = (weight > 0) & ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    # z_i z_a / t for all pairs (n, n); -inf takes a pair out of the softmax
    similarity = (z @ z.T / temperature).masked_fill(~others, -torch.inf)
    positives = others & (y.unsqueeze(1) == y)
    log_prob = similarity.log_softmax(dim=1).masked_fill(~positives, 0)  # (n, n)
    count = positives.sum(dim=1)
    per_anchor = -log_prob.sum(dim=1) / count.clamp(min=1)
    return mean(per_anchor, (weight if anchors is None else weight * anchors) * (count > 0))
