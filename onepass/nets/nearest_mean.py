"""A classifier without weights: the nearest mean of the classes' features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.functional.losses import one_hot
from onepass.nets.classifier import Classifier

ABSENT = -1e9  # the score of a class without samples: finite, and below minus any distance


class NearestMean(nn.Module):
    """Features have unit length before and after they are averaged; scores are minus the Euclidean
    distances to the means. Samples of weight 0 take no part.

    >>> features = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    >>> nearest = NearestMean(features, torch.tensor([0, 2]), torch.ones(2), classes=3)
    >>> nearest(torch.tensor([[0.0, 9.0]])).argmax(dim=1)
    tensor([2])
    """

    means: Tensor
    absent: Tensor

    def __init__(self, features: Tensor, y: Tensor, weight: Tensor, classes: int) -> None:
        super().__init__()
        member = one_hot(y, classes) * weight.unsqueeze(1)  # (n, classes)
        means = F.normalize(member.T @ F.normalize(features))  # a sum points as its mean does
        self.register_buffer("means", means)
        self.register_buffer("absent", member.sum(dim=0) == 0)

    def forward(self, features: Tensor) -> Tensor:
        """(n, classes)."""
        exact = "donot_use_mm_for_euclid_dist"  # a product of matrices would lose small distances
        # (samples, classes); a class without samples has a mean of zero, which must not win
        distance = torch.cdist(F.normalize(features), self.means, compute_mode=exact)
        return (-distance).masked_fill(self.absent, ABSENT)


class FeatureClassifier(nn.Module):
    """A classifier of features, such as the nearest mean, behind a network."""

    def __init__(self, net: Classifier, classifier: nn.Module) -> None:
        super().__init__()
        self.net, self.classifier = net, classifier

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.net.features(x).float())
        return scores
