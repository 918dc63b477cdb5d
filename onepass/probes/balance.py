"""Watches the gradient imbalance of any method, with the same sums that GSA uses."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from onepass.balance import Balance
from onepass.learner import Learner
from onepass.parts import Step


@dataclass
class BalanceProbe:
    """PN of the running task and A-PN of every class, over all samples a method trains on.

    `history` holds PN(t, c) by label for each task that has been followed by another.

    >>> import onepass
    >>> probe = BalanceProbe()
    >>> learner = onepass.ER(memory=100, seed=0)
    >>> learner.attach(probe)
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> points = list(onepass.evaluate(learner, stream))
    >>> rates = probe.a_pn()
    >>> sorted(rates) == list(range(10)), all(rate < 0 for rate in rates.values())
    (True, True)
    """

    sums: Balance | None = None
    task: int = 0
    labels: list[int] = field(default_factory=list)
    history: list[dict[int, float]] = field(default_factory=list)

    @torch.no_grad()
    def observe(self, learner: Learner, step: Step) -> None:
        if self.sums is None:
            self.sums = Balance(len(learner.seen), learner.where)
            self.task = learner.task
        if learner.task != self.task:
            self.history.append(self.pn())
            self.sums.new_task()
            self.task = learner.task
        self.labels = learner.classes
        self.sums.grow(len(learner.seen))
        self.sums.update(step.outputs, learner.seen)

    def pn(self) -> dict[int, float]:
        """PN(t, c) of the running task, by label; not a number for a class without a gradient."""
        return self._by_label(self._needed().pn())

    def a_pn(self) -> dict[int, float]:
        """A-PN(c), by label."""
        return self._by_label(self._needed().a_pn())

    def _needed(self) -> Balance:
        if self.sums is None:
            raise ValueError("the probe has seen no step yet")
        return self.sums

    def _by_label(self, rates: torch.Tensor) -> dict[int, float]:
        return dict(zip(self.labels, rates.tolist(), strict=False))
