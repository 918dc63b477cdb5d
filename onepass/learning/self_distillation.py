"""Averages a trainer's network, and teaches the network by its average.

Papers: Soutif-Cormerais et al., "Improving Online Continual Learning Performance and Stability with
Temporal Ensembles", 2023 (averaging), and Michel et al., "Rethinking Momentum Knowledge
Distillation in Online Continual Learning", 2024 (learning from it). Nothing here belongs to one
method: whatever a step shows the network by `forward` or `output`, the average is shown too, and

    L + distil T^2 E KL(softmax(average(v) / T) || softmax(network(v) / T))      over classes seen

is what the optimiser descends, where L is the method's own loss and v are the views of the step.
The average teaches as the network learns: BatchNorm has the statistics of the batch, in the same
forwards, so that an average that equals the network has nothing to teach.
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
    """What the network said of some samples in one forward, and the samples as they are."""

    outputs: Sequence[Output]
    samples: Sequence[Samples]

    @property
    def views(self) -> Tensor:
        return torch.cat([output.views for output in self.outputs])


class SelfDistillation:
    """The average that predicts, the one that teaches, and what it teaches in the running step.

    The trainer that holds it is an argument of its methods: a part that knew its trainer would keep
    both on a GPU until Python looks for garbage.
    """

    def __init__(self, settings: Training) -> None:
        self.settings = settings
        self.averaged: WeightAverage | None = None
        self.teaching: WeightAverage | None = None
        self._shown: list[ForwardRecord] = []
        self._lesson: Tensor | None = None

    def make_averages(self, trainer: Trainer) -> dict[str, StatefulPart]:
        """Makes them of the network as it is now, and returns them by the names that they are saved
        under: one that predicts and one that teaches, which may be the same."""
        average, source = self.settings.average, self.settings.distil_from
        parts: dict[str, StatefulPart] = {}
        if average is not None:
            parts["averaged"] = self.averaged = WeightAverage(trainer, average)
        self.teaching = self.averaged if self.settings.distil else None
        if source is not None and source != average:
            parts["teaching"] = self.teaching = WeightAverage(trainer, source)
        return parts

    def begin(self) -> None:
        """Drops what a step that failed, or a task's end, has left."""
        self._shown.clear()
        self._lesson = None

    def record_forward(self, outputs: Sequence[Output], batches: Sequence[Samples]) -> None:
        """Notes what one forward said of some batches: the average will be asked about them too."""
        if self.settings.distil:
            self._shown.append(ForwardRecord(outputs, batches))

    def add_distillation(self, loss: Tensor, trainer: Trainer) -> Tensor:
        """Returns the loss plus what the average teaches on all that was noted since last time."""
        if not self._shown or self.teaching is None:
            return loss
        shown = list(self._shown)
        self._shown.clear()
        output = Output.of_all([output for forward in shown for output in forward.outputs])
        taught = torch.cat(
            [self.teaching.teacher_logits(forward.views) for forward in shown]
        )  # (n, C)
        lesson = self._lesson_on(output, taught, trainer)
        if self.settings.distil_raw:  # the network is also shown the samples as they are
            plain = [_as_they_are(forward, trainer) for forward in shown]
            raw = torch.cat([trainer.model.train_forward(x) for x in plain])
            lesson = (lesson + self._lesson_on(output._replace(logits=raw), taught, trainer)) / 2
        said = lesson.detach()
        self._lesson = said if self._lesson is None else self._lesson + said
        return loss + self.settings.distil * lesson

    def _lesson_on(self, output: Output, taught: Tensor, trainer: Trainer) -> Tensor:
        return distillation(output, taught, trainer.seen, self.settings.distil_temperature)

    def with_term(self, done: Step) -> Step:
        """Returns the step with the lesson among its terms."""
        if self._lesson is None:
            return done
        return replace(done, terms={**done.terms, "distil": self._lesson})


def _as_they_are(shown: ForwardRecord, trainer: Trainer) -> Tensor:
    """Returns the samples, each batch with its mirror images behind, as outputs have them."""
    return torch.cat([trainer.views.plain(batch.x) for batch in shown.samples])
