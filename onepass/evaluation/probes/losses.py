"""The probe `losses`: cross-entropy on stream and replay samples, and on old and new classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.parts import Step
from onepass.evaluation.callbacks import Listener, Run
from onepass.evaluation.points import Point
from onepass.evaluation.probes.registry import probe
from onepass.learning.learner import Learner
from onepass.learning.network_learner import expect_network

EVERY = 10  # a line after each tenth step of the run
KINDS = 4  # of samples: 0 and 1, old and new classes in the stream; 2 and 3, those in the replay
GROUPS = {"stream": [0, 1], "replay": [2, 3], "new": [1, 3], "old": [0, 2]}


@probe("losses")
@dataclass
class LossesProbe(Listener):
    """Measures the mean cross-entropy on stream samples, on replay samples, and on samples of new
    and of old classes.

    The softmax runs over all classes seen, whatever the method's own loss is. A run records a line
    after every tenth batch of the stream, and one at the end of each task: `task`, its number;
    `step`, the number of batches learned so far; and the means `stream`, `replay`, `new` and `old`
    over the batches since the line before, null without samples. The first batch that a step trains
    counts as the stream, all others as the replay. For `gsa` the
    replay is X^mix, which also has samples of the stream. `ocm` trains on no stream labels after
    the first task, so its replay counts as `stream`.
    """

    needs_network: ClassVar[bool] = True

    steps: int = 0
    sums: Tensor = field(default_factory=lambda: torch.zeros(2, KINDS))
    # The step and the sums of each line to come. The sums stay on the device until scoring waits
    # for it anyway.
    waiting: list[tuple[int, Tensor]] = field(default_factory=list)

    def started(self, run: Run) -> None:
        device = run.learner.torch_device
        self.sums = self.sums.to(device)
        self.waiting = [(step, sums.to(device)) for step, sums in self.waiting]

    @torch.no_grad()
    def stepped(self, learner: Learner, step: Step) -> None:
        learner = expect_network(learner, self.key)
        self.steps += 1
        if (trained := step.together) is not None:
            logits = trained.logits.float().masked_fill(~learner.seen, -torch.inf)
            each = F.cross_entropy(logits, trained.y, reduction="none")  # (n)
            kind = learner.new[trained.y].long()  # 0: old class, 1: new class
            kind[len(step.outputs[0].y) :] += 2  # what follows the stream batch is replay
            values = torch.stack([each * trained.weight, trained.weight])  # (2, n)
            self.sums.index_add_(1, kind, values)
        if self.steps % EVERY == 0:
            self._close()

    def scored(self, point: Point) -> None:
        self._say(point.task)

    def task_ended(self, task: int) -> None:
        if self.steps % EVERY:
            self._close()
        self._say(task)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "sums": self.sums.clone(), "waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.sums = state["steps"], state["sums"]
        self.waiting = [(step, sums) for step, sums in state["waiting"]]

    def _close(self) -> None:
        """Ends the sums of one line, and begins those of the next."""
        self.waiting.append((self.steps, self.sums))
        self.sums = torch.zeros_like(self.sums)

    def _say(self, task: int) -> None:
        """Records the waiting sums, all of one task. It waits for the device, as scoring does."""
        for step, sums in ((step, sums.cpu()) for step, sums in self.waiting):
            totals = {name: sums[:, kinds].sum(dim=1).tolist() for name, kinds in GROUPS.items()}
            means = {name: total / n if n else None for name, (total, n) in totals.items()}
            self.say({"task": task, "step": step, **means})
        self.waiting.clear()
