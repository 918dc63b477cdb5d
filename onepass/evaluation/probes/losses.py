"""Watches the cross-entropy of what a method trains on: stream and replay, old and new classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.parts import Step
from onepass.evaluation.callbacks import Listener, Run
from onepass.evaluation.points import Point
from onepass.evaluation.probes.registry import probe
from onepass.learning.learner import Learner

EVERY = 10  # steps of one line
KINDS = 4  # of samples: of old and of new classes, in the stream and in the replay
GROUPS = {"stream": [0, 1], "replay": [2, 3], "new": [1, 3], "old": [0, 2]}


@probe("losses")
@dataclass
class LossesProbe(Listener):
    """Mean cross-entropy of the stream batch, of the replay batch, and of samples of new and of old
    classes.

    The softmax runs over all classes seen, whatever the method's own loss is. A run records one
    line for every ten batches and for what is left of them at the end of a task: the number of the
    task, how many batches had been learned, and the four means, null where there was no sample. The
    stream batch is the first that a step trains, the replay batch is all others: for `gsa` X^mix,
    which has samples of the stream too. `ocm` trains no labels of the stream after the first task;
    what it replays stands under `stream`.
    """

    steps: int = 0
    sums: Tensor = field(default_factory=lambda: torch.zeros(2, KINDS))
    waiting: list[tuple[int, Tensor]] = field(default_factory=list)  # until somebody waits anyhow

    def started(self, run: Run) -> None:
        where = run.learner.trainer.torch_device
        self.sums = self.sums.to(where)
        self.waiting = [(step, sums.to(where)) for step, sums in self.waiting]

    @torch.no_grad()
    def stepped(self, learner: Learner, step: Step) -> None:
        self.steps += 1
        if (trained := step.together) is not None:
            logits = trained.logits.float().masked_fill(~learner.seen, -torch.inf)
            each = F.cross_entropy(logits, trained.y, reduction="none")  # (n)
            kind = learner.new[trained.y].long()  # 0 and 1: old and new classes of the stream
            kind[len(step.outputs[0].y) :] += 2  # 2 and 3: of the replay
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
        self.waiting.append((self.steps, self.sums))
        self.sums = torch.zeros_like(self.sums)

    def _say(self, task: int) -> None:
        """Waits for the device, as scoring does; all that waits is of one task."""
        for step, sums in ((step, sums.cpu()) for step, sums in self.waiting):
            told = {name: sums[:, kinds].sum(dim=1).tolist() for name, kinds in GROUPS.items()}
            means = {name: total / n if n else None for name, (total, n) in told.items()}
            self.say({"task": task, "step": step, **means})
        self.waiting.clear()
