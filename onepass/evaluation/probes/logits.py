"""Keeps the logits of a few steps as they are, for whoever wants to compute something else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from onepass.base.parts import Output, Step
from onepass.evaluation.callbacks import Listener
from onepass.evaluation.probes.registry import probe
from onepass.learning.learner import Learner


@probe("logits")
@dataclass
class LogitsProbe(Listener):
    """The logits of all samples in the last step of each task.

    A run records one line for each task of the stream that has ended: its number, how many batches
    had been learned, the labels of all `classes` seen in the order of the logits, those of the
    `new` ones, and `batches`: for each that the step trained, the labels `y`, the `weight` (0:
    padding) and the `logits` of its samples.
    """

    line: dict[str, Any] = field(default_factory=dict)  # but for what waits for the device
    new: Tensor | None = None
    step: Step | None = None

    def stepped(self, learner: Learner, step: Step) -> None:
        """Keeps what there is now: when a task has ended, the learner may be a batch ahead."""
        self.line = {"step": learner.steps, "classes": learner.classes}
        self.new, self.step = learner.new.clone(), step

    def task_ended(self, task: int) -> None:
        assert self.new is not None and self.step is not None  # a step comes before
        classes = self.line["classes"]
        fresh = zip(classes, self.new.tolist(), strict=False)  # the head has spare rows
        self.say(
            {
                "task": task,
                **self.line,
                "new": [label for label, new in fresh if new],
                "batches": [_logits_of(output, classes) for output in self.step.outputs],
            }
        )


def _logits_of(output: Output, classes: list[Any]) -> dict[str, Any]:
    return {
        "y": [classes[row] for row in output.y.tolist()],
        "weight": output.weight.tolist(),
        "logits": output.logits[:, : len(classes)].tolist(),
    }
