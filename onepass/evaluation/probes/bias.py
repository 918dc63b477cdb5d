"""The probe `bias`: how far the class head prefers new classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from onepass.base.parts import Step
from onepass.evaluation.callbacks import Listener, Run
from onepass.evaluation.points import Point
from onepass.evaluation.probes.registry import probe
from onepass.learning.learner import Learner
from onepass.learning.network_learner import NetworkLearner, expect_network
from onepass.nets import Head


@probe("bias")
@dataclass
class BiasProbe(Listener):
    """Measures weight norms, biases and mean logits of the class head, for old and for new classes.

    A run records a line whenever it is scored and at the end of each task: `task`, its number, and
    `step`, the number of batches learned so far. `old` and `new` each hold three means over their
    classes. `norm` and `bias` are those of the head's rows at this moment. `logit` is the mean over
    the samples trained since the last line, and null without any. `old` is null in the first task.
    The probe reads the network that trains, even if a moving average of its weights predicts.
    """

    needs_network: ClassVar[bool] = True

    steps: int = 0
    said: int = 0  # the step of the last line
    # Sums over the samples trained since the last line: of the mean logit of old and of new classes
    # (2), and of the samples' weights
    sums: Tensor = field(default_factory=lambda: torch.zeros(2))
    weight: Tensor = field(default_factory=lambda: torch.zeros(()))
    learner: NetworkLearner | None = None
    # The cache of `_sides_of`: the task and the number of classes, and the matrix (C, 2) for them
    _sides: tuple[tuple[int, int], Tensor] | None = None

    def started(self, run: Run) -> None:
        self.sums, self.weight = (
            tensor.to(run.learner.torch_device) for tensor in (self.sums, self.weight)
        )

    @torch.no_grad()
    def stepped(self, learner: Learner, step: Step) -> None:
        self.steps, self.learner = self.steps + 1, expect_network(learner, self.key)
        sides = self._sides_of(self.learner)
        if (trained := step.together) is not None:
            totals = trained.weight @ trained.logits.float()  # (C)
            self.sums += totals @ sides
            self.weight += trained.weight.sum()

    def scored(self, point: Point) -> None:
        self._say(point.task)

    def task_ended(self, task: int) -> None:
        if self.said != self.steps:  # this step has no line yet
            self._say(task)

    def state_dict(self) -> dict[str, Any]:
        sums = {"sums": self.sums.clone(), "weight": self.weight.clone()}
        return {"steps": self.steps, "said": self.said, **sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.said = state["steps"], state["said"]
        self.sums, self.weight = state["sums"], state["weight"]

    def _sides_of(self, learner: NetworkLearner) -> Tensor:
        """Returns the matrix (C, 2) that maps logits to their means over old and over new classes.
        It is cached by task and number of classes, which the CPU knows without waiting for the
        GPU."""
        now = (learner.task, len(learner.class_index.labels))
        if self._sides is None or self._sides[0] != now:
            sides = torch.stack([learner.old, learner.new], dim=1).float()  # (C, 2)
            self._sides = now, sides / sides.sum(dim=0).clamp(min=1)
        return self._sides[1]

    @torch.no_grad()
    def _say(self, task: int) -> None:
        """Records a line. It waits for the device, as scoring does."""
        assert self.learner is not None and self._sides is not None  # set by the first step
        head, weight = self.learner.model.head, float(self.weight)
        logits = [total / weight if weight else None for total in self.sums.tolist()]
        old, new = self._sides[1].bool().unbind(dim=1)
        sides = {
            "old": _head_statistics(head, old, logits[0]),
            "new": _head_statistics(head, new, logits[1]),
        }
        self.say({"task": task, "step": self.steps, **sides})
        self.said = self.steps
        self.sums.zero_()
        self.weight.zero_()


def _head_statistics(
    head: Head, rows: Tensor, logit: float | None
) -> dict[str, float | None] | None:
    """Returns the three means of a line for these rows of the head; None without rows."""
    if not bool(rows.any()):
        return None
    # At the end of a task of an iterable, the learner is a batch ahead and its head may have grown.
    # `rows` has the size from before.
    weight, bias = head.weight[: len(rows)][rows], head.bias[: len(rows)][rows]
    norm, bias = weight.norm(dim=1).mean(), bias.mean()
    return {"norm": float(norm), "bias": float(bias), "logit": logit}
