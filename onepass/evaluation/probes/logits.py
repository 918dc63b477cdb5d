"""The probe `logits`: the logits of every sample in the last step of each task, for statistics that
no other probe computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from onepass.base.parts import Output, Step
from onepass.evaluation.callbacks import Listener
from onepass.evaluation.probes.registry import probe
from onepass.learning.learner import Learner
from onepass.learning.network_learner import expect_network


@probe("logits")
@dataclass
class LogitsProbe(Listener):
    """Records, at the end of each task, the logits of all samples that the last step of the task
    trained on, from the stream and the memory. They are the logits before the step's update.

    A run records a line at the end of each task: `task`, its number; `step`, the number of batches
    learned so far; `classes`, the labels of all classes seen, in the order of the logits; `new`,
    the labels of the new ones; and `batches`. For each batch that the step trained, `batches` holds
    the labels `y`, the `weight` (0 for padding) and the `logits` of its samples, a row per view.
    """

    needs_network: ClassVar[bool] = True

    line: dict[str, Any] = field(default_factory=dict)  # the fields that need no wait for the GPU
    new: Tensor | None = None
    step: Step | None = None

    def stepped(self, learner: Learner, step: Step) -> None:
        """Keeps this step, because it may be the last of its task: at `task_ended` the learner may
        be a batch ahead."""
        self.line = {"step": learner.steps, "classes": learner.classes}
        self.new, self.step = expect_network(learner, self.key).new.clone(), step

    def task_ended(self, task: int) -> None:
        assert self.new is not None and self.step is not None  # set by the first step
        classes = self.line["classes"]
        flags = zip(classes, self.new.tolist(), strict=False)  # the head has spare rows
        self.say(
            {
                "task": task,
                **self.line,
                "new": [label for label, new in flags if new],
                "batches": [_logits_of(output, classes) for output in self.step.outputs],
            }
        )


def _logits_of(output: Output, classes: list[Any]) -> dict[str, Any]:
    return {
        "y": [classes[row] for row in output.y.tolist()],
        "weight": output.weight.tolist(),
        "logits": output.logits[:, : len(classes)].tolist(),
    }
