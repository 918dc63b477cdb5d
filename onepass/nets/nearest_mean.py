"""The nearest-class-mean classifier, and a network that has it in place of its class head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.functional.losses import one_hot
from onepass.nets.classifier import Classifier

ABSENT = -1e9  # the score of a class without samples: finite, and below all other scores


class NearestMean(nn.Module):
    """A nearest-class-mean classifier: the score of a class is minus the distance to its mean. A
    class without samples never wins.

    Features and means are normalised to unit length. Samples of weight 0 are ignored.

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
        means = F.normalize(
            member.T @ F.normalize(features)
        )  # the sum has the direction of the mean
        self.register_buffer("means", means)
        self.register_buffer("absent", member.sum(dim=0) == 0)

    def forward(self, features: Tensor) -> Tensor:
        """Returns the scores (n, classes) of features (n, features)."""
        exact = "donot_use_mm_for_euclid_dist"  # a matrix product would lose small distances
        # (n, classes); a class without samples has a zero mean, which must not win
        distance = torch.cdist(F.normalize(features), self.means, compute_mode=exact)
        return (-distance).masked_fill(self.absent, ABSENT)


class FeatureClassifier(nn.Module):
    """A network's backbone, followed by a classifier of its features, such as the nearest mean."""

    def __init__(self, net: Classifier, classifier: nn.Module) -> None:
        super().__init__()
        self.net, self.classifier = net, classifier

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.net.features(x).float())
        return scores
