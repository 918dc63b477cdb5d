"""GSA on numbered samples, which shows the samples that it puts into X^new and X^mix."""

import torch
from gsa_against_naive import gsa
from torch import Tensor, nn


class KeepsInput(nn.Module):
    """Returns its inputs as features, and keeps the last batch for inspection."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach()
        return 1e-4 * x


class NumberedGSA:
    """A learner on numbered samples that reports X^mix as (number, label, genuine).

    What it puts into X^new is kept as `first`.
    """

    def __init__(self, **settings: object) -> None:
        self.learner = gsa(net=KeepsInput(), lr=1e-6, **settings)
        self.label_of: list[int] = []

    def learn(self, labels: list[int]) -> list[tuple[int, int, bool]]:
        numbers = torch.arange(len(labels)) + len(self.label_of)
        self.label_of += labels
        self.step = self.learner.learn(numbers.float().unsqueeze(1), labels)
        seen = self.learner.model.body.last[:, 0].long().tolist()
        rows = torch.cat([output.y for output in self.step.outputs])
        weight = torch.cat([output.weight for output in self.step.outputs])
        names = [self.learner.classes[row] for row in rows]
        every = list(zip(seen, names, (weight > 0).tolist(), strict=True))
        self.first = every[: -self.learner.mix]
        return every[-self.learner.mix :]

    def memory_of(self, labels: set[int]) -> int:
        size = int(self.learner.store.size)
        held = [self.learner.classes[row] for row in self.learner.store.y[:size].tolist()]
        return sum(label in labels for label in held)


def genuine(mixed: list[tuple[int, int, bool]], among: set[int]) -> list[int]:
    return [number for number, label, real in mixed if real and label in among]
