"""Self-distillation for any method: the teacher is a moving average of the network's weights, and
`SelfDistillation` also owns the average that predicts, which may be the same one.

Papers: Soutif-Cormerais et al., "Improving Online Continual Learning Performance and Stability with
Temporal Ensembles", 2023 (the average), and Michel et al., "Rethinking Momentum Knowledge
Distillation in Online Continual Learning", 2024 (the distillation). The optimiser minimises

    L + distil T^2 E KL(softmax(average(v) / T) || softmax(network(v) / T))      over classes seen

where L is the loss of the method, v are the views of the step, and T is `distil_temperature`. The
teacher is evaluated on the views of each forward pass that the step makes or registers. Its
BatchNorm layers use the statistics of the same batches as the network's. So the second term is zero
if the average equals the network. With `distil_raw` it is the mean of two: the network sees the
views in one, and the samples without augmentation in the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from onepass.base.parts import Output, Samples, StatefulPart, Step
from onepass.functional.losses import distillation
from onepass.learning.network_copies import WeightAverage

if TYPE_CHECKING:
    from onepass.learning.trainer import Trainer, Training


class ForwardRecord(NamedTuple):
    """A forward pass of a step: the output of each batch, and the batches themselves."""

    outputs: Sequence[Output]
    samples: Sequence[Samples]

    @property
    def views(self) -> Tensor:
        """The network's inputs in this forward pass, for all batches."""
        return torch.cat([output.views for output in self.outputs])


class SelfDistillation:
    """The average that predicts, the average that teaches, and the distillation loss of the step.

    `averaged` predicts, and `teaching` teaches; either is None if the settings do not ask for it.
    Methods get the trainer as an argument. Storing it would make a cycle, whose GPU memory only
    Python's garbage collector frees.
    """

    def __init__(self, settings: Training) -> None:
        self.settings = settings
        self.averaged: WeightAverage | None = None
        self.teaching: WeightAverage | None = None
        self._forwards: list[ForwardRecord] = []
        self._loss: Tensor | None = None

    def make_averages(self, trainer: Trainer) -> dict[str, StatefulPart]:
        """Makes the averages that the settings ask for, from the current network. Returns them by
        the names under which they are saved. One average may both predict and teach."""
        average, source = self.settings.average, self.settings.distil_from
        parts: dict[str, StatefulPart] = {}
        if average is not None:
            parts["averaged"] = self.averaged = WeightAverage(trainer, average)
        self.teaching = self.averaged if self.settings.distil else None
        if source is not None and source != average:
            parts["teaching"] = self.teaching = WeightAverage(trainer, source)
        return parts

    def begin(self) -> None:
        """Clears the forward passes and the loss that a failed step or the end of a task has left
        behind. It is called before each step."""
        self._forwards.clear()
        self._loss = None

    def record_forward(self, outputs: Sequence[Output], batches: Sequence[Samples]) -> None:
        """Registers a forward pass, on whose views the teacher will be evaluated. Does nothing if
        `distil` is 0."""
        if self.settings.distil:
            self._forwards.append(ForwardRecord(outputs, batches))

    def add_distillation(self, loss: Tensor, trainer: Trainer) -> Tensor:
        """Returns the loss plus `distil` times the distillation loss on all forward passes that
        were registered since the last call."""
        if not self._forwards or self.teaching is None:
            return loss
        forwards = list(self._forwards)
        self._forwards.clear()
        output = Output.of_all([output for forward in forwards for output in forward.outputs])
        targets = torch.cat([self.teaching.teacher_logits(forward.views) for forward in forwards])
        distil_loss = self._distillation_loss(output, targets, trainer)
        if self.settings.distil_raw:
            # another forward pass of the network; the teacher's targets stay those for the views
            inputs = [_unaugmented(forward, trainer) for forward in forwards]
            raw = torch.cat([trainer.model.train_forward(x) for x in inputs])
            distil_loss = (
                distil_loss + self._distillation_loss(output._replace(logits=raw), targets, trainer)
            ) / 2
        detached = distil_loss.detach()
        self._loss = detached if self._loss is None else self._loss + detached
        return loss + self.settings.distil * distil_loss

    def _distillation_loss(self, output: Output, targets: Tensor, trainer: Trainer) -> Tensor:
        return distillation(output, targets, trainer.seen, self.settings.distil_temperature)

    def with_term(self, step: Step) -> Step:
        """Returns the step's report with the distillation loss, without its weight, among the
        terms. Without distillation the report stays as it is."""
        if self._loss is None:
            return step
        return replace(step, terms={**step.terms, "distil": self._loss})


def _unaugmented(forward: ForwardRecord, trainer: Trainer) -> Tensor:
    """Returns the network's inputs for the samples of a forward pass, without augmentation. If
    images are mirrored, each batch is followed by its mirror images, as in outputs."""
    return torch.cat([trainer.views.plain(batch.x) for batch in forward.samples])
