"""Watches how far the head prefers new classes: norms of its rows, biases, and logits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from onepass.base.parts import Step
from onepass.evaluation.callbacks import Listener, Run
from onepass.evaluation.points import Point
from onepass.evaluation.probes.registry import probe
from onepass.learning.learner import Learner
from onepass.nets import Head


@probe("bias")
@dataclass
class BiasProbe(Listener):
    """Norms of the head's rows, their biases and mean logits, of old classes against new ones.

    A run records one line whenever it is scored and at the end of each task: the number of the
    task, how many batches had been learned, and, for `old` and for `new` classes, the mean `norm`
    of their rows and the mean `bias` at that moment, and the mean `logit` that the samples trained
    since the last line had for them. `old` is null in the first task. The network that trains is
    watched, also where an average of it predicts.
    """

    steps: int = 0
    said: int = 0
    sums: Tensor = field(default_factory=lambda: torch.zeros(2))  # of logits, of old and of new
    weight: Tensor = field(default_factory=lambda: torch.zeros(()))
    learner: Learner | None = None
    _sides: tuple[tuple[int, int], Tensor] | None = None  # (C, 2), and what classes they are of

    def started(self, run: Run) -> None:
        self.sums, self.weight = (
            one.to(run.learner.trainer.torch_device) for one in (self.sums, self.weight)
        )

    @torch.no_grad()
    def stepped(self, learner: Learner, step: Step) -> None:
        self.steps, self.learner = self.steps + 1, learner
        sides = self._sides_of(learner)
        if (trained := step.together) is not None:
            totals = trained.weight @ trained.logits.float()  # (C)
            self.sums += totals @ sides
            self.weight += trained.weight.sum()

    def scored(self, point: Point) -> None:
        self._say(point.task)

    def task_ended(self, task: int) -> None:
        if self.said != self.steps:  # not scored just now
            self._say(task)

    def state_dict(self) -> dict[str, Any]:
        sums = {"sums": self.sums.clone(), "weight": self.weight.clone()}
        return {"steps": self.steps, "said": self.said, **sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.said = state["steps"], state["said"]
        self.sums, self.weight = state["sums"], state["weight"]

    def _sides_of(self, learner: Learner) -> Tensor:
        """Takes logits (C) to their means over old and over new classes (2); made anew only when
        classes or tasks arrive, which the host knows."""
        now = (learner.task, len(learner.class_index.labels))
        if self._sides is None or self._sides[0] != now:
            sides = torch.stack([learner.old, learner.new], dim=1).float()  # (C, 2)
            self._sides = now, sides / sides.sum(dim=0).clamp(min=1)
        return self._sides[1]

    @torch.no_grad()
    def _say(self, task: int) -> None:
        """Waits for the device, as scoring does."""
        assert self.learner is not None and self._sides is not None  # a step comes before
        head, weight = self.learner.model.head, float(self.weight)
        logits = [total / weight if weight else None for total in self.sums.tolist()]
        old, new = self._sides[1].bool().unbind(dim=1)  # of the last step: the learner may be ahead
        told = {
            "old": _head_statistics(head, old, logits[0]),
            "new": _head_statistics(head, new, logits[1]),
        }
        self.say({"task": task, "step": self.steps, **told})
        self.said = self.steps
        self.sums.zero_()
        self.weight.zero_()


def _head_statistics(
    head: Head, rows: Tensor, logit: float | None
) -> dict[str, float | None] | None:
    if not bool(rows.any()):
        return None
    weight, bias = head.weight[: len(rows)][rows], head.bias[: len(rows)][rows]  # it may have grown
    norm, bias = weight.norm(dim=1).mean(), bias.mean()
    return {"norm": float(norm), "bias": float(bias), "logit": logit}
