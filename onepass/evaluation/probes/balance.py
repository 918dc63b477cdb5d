"""The probe `balance`: the gradient imbalance of each class in any method, from the same sums that
GSA uses. `onepass.functional.imbalance` defines P, N, PN and A-PN."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.parts import Label, Step
from onepass.evaluation.callbacks import Listener, Run
from onepass.evaluation.points import Point
from onepass.evaluation.probes.registry import probe
from onepass.functional.imbalance import Balance
from onepass.learning.learner import Learner
from onepass.learning.network_learner import expect_network


@probe("balance")
@dataclass
class BalanceProbe(Listener):
    """Measures P, N and PN of each class in the current task, and A-PN of each class over all
    tasks. The sums run over all samples that a method trains on, from the stream and the memory.

    `history` holds PN(t, c) by label for each finished task that another one has followed. A run
    records a line whenever it is scored within a task, and a line with `ended` set at the end of
    each task:

    - `task` and `step`, the number of the task and the number of batches learned so far;
    - `samples`, how many samples were trained in this task (stream and replay), and `own`, how many
      of them belong to each class;
    - `p`, `n`, `pn` and `a_pn`, by label;
    - `p_new`, how much of `p` comes from samples of new classes, by label;
    - `pn_of_tasks`, PN(t, t') of each task so far; empty for an iterable of batches.

    A rate that is not finite is null: its class has had no negative gradient, or the task no
    sample. For a method that `repeats` its steps, only the last step on each batch counts.

    >>> import onepass
    >>> probe = BalanceProbe()
    >>> learner = onepass.ER(memory=100, seed=0)
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> points = list(onepass.evaluate(learner, stream, listeners=[probe]))
    >>> rates = probe.a_pn()
    >>> sorted(rates) == list(range(10)), all(rate < 0 for rate in rates.values())
    (True, True)
    """

    needs_network: ClassVar[bool] = True

    sums: Balance | None = None  # None before the first step
    own: Tensor = field(default_factory=lambda: torch.zeros(0))  # samples of each class   (C)
    # S+ of each class, as far as it comes from samples of new classes                     (C)
    by_new: Tensor = field(default_factory=lambda: torch.zeros(0))
    task: int = 0
    steps: int = 0
    labels: list[Label] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    history: list[dict[Label, float]] = field(default_factory=list)

    def started(self, run: Run) -> None:
        self.groups = [list(group) for group in run.stream.tasks] if run.stream else []
        if self.sums is not None:  # a resumed run: `load_state_dict` left them on the CPU
            self.sums = _restore(self.sums.state_dict(), run.learner.torch_device)
            self.own = self.own.to(run.learner.torch_device)
            self.by_new = self.by_new.to(run.learner.torch_device)

    @torch.no_grad()
    def stepped(self, learner: Learner, step: Step) -> None:
        learner = expect_network(learner, self.key)
        if self.sums is None:
            self.sums = Balance(len(learner.seen), learner.torch_device)
            self.own = torch.zeros_like(self.sums.positive)
            self.by_new = torch.zeros_like(self.sums.positive)
            self.task = learner.task
        if learner.task != self.task:  # this step is the first of a new task
            self.history.append(self.pn())
            self.sums.new_task()
            self.own.zero_()
            self.by_new.zero_()
            self.task = learner.task
        self.steps += 1
        self.labels = learner.classes
        if len(learner.seen) > self.sums.sums.shape[-1]:
            self.sums.grow(len(learner.seen))
            more = len(learner.seen) - len(self.own)
            self.own, self.by_new = F.pad(self.own, (0, more)), F.pad(self.by_new, (0, more))
        if step.together is None:
            return
        positive, _ = self.sums.update([step.together], learner.seen)  # (n, C)
        y, weight = step.together.y, step.together.weight.to(positive.dtype)
        self.own.index_add_(0, y, weight)
        self.by_new += learner.new[y].to(positive.dtype) @ positive

    def scored(self, point: Point) -> None:
        if not point.boundary:
            self._say(point.task, ended=False)

    def task_ended(self, task: int) -> None:
        self._say(task, ended=True)

    def _say(self, task: int, *, ended: bool) -> None:
        sums = self._needed()
        by_class = {"p": sums.p(), "n": sums.n(), "pn": sums.pn(), "a_pn": sums.a_pn()}
        by_class["p_new"] = self.by_new / sums.samples
        rates = {
            name: _finite_by_label(self._by_label(values)) for name, values in by_class.items()
        }
        own = {str(label): int(count) for label, count in self._by_label(self.own).items()}
        of_tasks = [_finite(self.pn_of(group)) for group in self.groups[: task + 1]]
        head = {"task": task, "step": self.steps, "ended": ended, "samples": int(sums.samples)}
        self.say({**head, "own": own, **rates, "pn_of_tasks": of_tasks})

    def pn(self) -> dict[Label, float]:
        """Returns PN(t, c) of each class c in the current task t, by label. It is NaN for a class
        without gradients, and minus infinity for a class without negative ones."""
        return self._by_label(self._needed().pn())

    def a_pn(self) -> dict[Label, float]:
        """Returns A-PN(c) of each class c over all tasks so far, by label."""
        return self._by_label(self._needed().a_pn())

    def pn_of(self, labels: Iterable[Label]) -> float:
        """Returns PN(t, t'): the ratio for the classes with these labels, t', together in the
        current task t. It is NaN if none of them has been seen."""
        rows = [self.labels.index(label) for label in labels if label in self.labels]
        return float(self._needed().task_pn(rows)) if rows else math.nan

    def state_dict(self) -> dict[str, Any]:
        plain = {"task": self.task, "steps": self.steps, "labels": self.labels}
        sums = None if self.sums is None else self.sums.state_dict()
        own, by_new = self.own.clone(), self.by_new.clone()
        return {**plain, "history": self.history, "sums": sums, "own": own, "by_new": by_new}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.task, self.steps = state["task"], state["steps"]
        self.labels, self.history = list(state["labels"]), list(state["history"])
        if state["sums"] is not None:
            self.sums = _restore(state["sums"], torch.device("cpu"))
            self.own, self.by_new = state["own"].clone(), state["by_new"].clone()

    def _needed(self) -> Balance:
        """Returns the sums; raises a ValueError before the first step."""
        if self.sums is None:
            raise ValueError("this probe has seen no step: evaluate a learner with it first")
        return self.sums

    def _by_label(self, rates: Tensor) -> dict[Label, float]:
        return dict(zip(self.labels, rates.tolist(), strict=False))


def _restore(state: dict[str, Any], device: torch.device) -> Balance:
    sums = Balance(state["sums"].shape[-1], device)
    sums.load_state_dict(state)
    return sums


def _finite_by_label(values: dict[Label, float]) -> dict[str, float | None]:
    return {str(label): _finite(value) for label, value in values.items()}


def _finite(rate: float) -> float | None:
    return rate if math.isfinite(rate) else None
