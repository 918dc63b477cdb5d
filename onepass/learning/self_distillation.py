"""A learner that averages itself, learns from its average, and trains more than once on a batch.

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

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from onepass.base.parts import Images, Output, Samples, Step
from onepass.base.settings import as_text
from onepass.functional.losses import distillation
from onepass.learning.network_copies import Average, Rule
from onepass.learning.step_ops import Steps
from onepass.learning.trainer import Trainer, Training
from onepass.nets import Classifier


class Shown(NamedTuple):
    """What the network said of some samples in one forward, and the samples as they are."""

    outputs: Sequence[Output]
    samples: Sequence[Samples]

    @property
    def views(self) -> Tensor:
        return torch.cat([output.views for output in self.outputs])


@dataclass(kw_only=True, eq=False)
class SelfTaught(Steps, Training):
    """Settings that every method has, and what they do to a step; `onepass.Learner` explains them.

    A method that cannot have one of them says why in `cannot`.
    """

    average: Rule | None = None
    mirror_scores: bool = False
    distil: float = 0.0
    distil_from: Rule | None = None
    distil_temperature: float = 4.0
    distil_raw: bool = False
    repeats: int = 1

    # settings that must stay as by default, its own or inherited ones, each with the reason
    cannot: ClassVar[dict[str, str]] = {}

    averaged: Average | None = field(init=False, default=None)
    teaching: Average | None = field(init=False, default=None)
    _shown: list[Shown] = field(init=False, default_factory=list)
    _lesson: Tensor | None = field(init=False, default=None)

    def check_settings(self) -> None:
        usual = {setting.name: setting.default for setting in fields(self)}
        for name, why in self.cannot.items():
            self.check_name(name)
            wanted = f"{as_text(usual[name])}: {why}"
            self.require(name, getattr(self, name) == usual[name], wanted)
        for name in ("average", "distil_from"):
            rule = getattr(self, name)
            decay = rule if isinstance(rule, float | int) else 0
            self.require(name, 0 <= decay < 1, "a decay in [0, 1), growing, arrivals, or none")
        self.require("distil", self.distil >= 0, "zero or more")
        taught = self.average is not None or self.distil_from is not None
        self.require("distil", taught or not self.distil, "0 where there is no average to teach")
        used = self.distil_from is None or self.distil > 0
        self.require("distil_from", used, "none where distil is 0 and nothing is taught")
        self.require("distil_temperature", self.distil_temperature > 0, "positive")
        self.require("repeats", self.repeats >= 1, "at least 1")

    def make_averages(self, trainer: Trainer) -> None:
        """One that predicts and one that teaches, which may be the same."""
        self.averaged = None if self.average is None else Average(trainer, self.average)
        self.teaching = self.averaged if self.distil else None
        if self.distil_from is not None and self.distil_from != self.average:
            self.teaching = Average(trainer, self.distil_from)

    # ---- what it costs

    @abstractmethod
    def cost(self, batch: int) -> Images:
        """Of one step of the method's own; the learner says more."""

    def cost_of_letting_in(self, batch: int) -> Images:
        """Those of them that only the last step on a batch needs."""
        return Images(0)

    def shown(self, batch: int) -> int:
        """How many of them the average is shown too: those whose logits the step trains."""
        return self.cost(batch).trained

    def images(self, batch: int) -> Images:
        """All images that a stream batch of this size costs, once tasks and memory are under way;
        copies of the network count like the network itself."""
        own, once = self.cost(batch), self.cost_of_letting_in(batch)
        shown = self.shown(batch) if self.distil else 0
        trained = own.trained - once.trained + shown * self.distil_raw
        scored = own.scored - once.scored + shown
        return once + Images(self.repeats * trained, self.repeats * scored)

    # ---- what it does

    @property
    def answering(self) -> Classifier:
        """The network that predicts, in evaluation mode: the average, where there is one."""
        return self.evaluator if self.averaged is None else self.averaged.model

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> Step:
        """The method has it."""

    def taught_step(self, x: Tensor, y: Tensor) -> Step:
        """The method's step; what the average had to say is a term of it."""
        self._shown.clear()
        self._lesson = None  # of a step that failed, or of the end of a task
        done = self.step(x, y)
        if self._lesson is None:
            return done
        return replace(done, terms={**done.terms, "distil": self._lesson})

    def forward(self, *batches: Samples) -> list[Output]:
        outputs = super().forward(*batches)
        self.note(outputs, batches)
        return outputs

    def forward_apart(self, *batches: Samples) -> list[Output]:
        outputs = super().forward_apart(*batches)
        for output, batch in zip(outputs, batches, strict=True):
            self.note([output], [batch])
        return outputs

    def note(self, outputs: Sequence[Output], batches: Sequence[Samples]) -> None:
        """What one forward said of some batches: the average will be asked about them too. For
        steps that do without `forward`."""
        if self.distil:
            self._shown.append(Shown(outputs, batches))

    def descend(self, loss: Tensor) -> None:
        super().descend(self._with_lesson(loss))

    def gradients(self, loss: Tensor) -> list[Tensor]:
        return super().gradients(self._with_lesson(loss))

    def _with_lesson(self, loss: Tensor) -> Tensor:
        """The loss, and what the average teaches on all that was shown since the last time."""
        if not self._shown or self.teaching is None:
            return loss
        shown = list(self._shown)
        self._shown.clear()
        output = Output.of_all([output for one in shown for output in one.outputs])
        taught = torch.cat([self.teaching.teach(one.views) for one in shown])  # (n, C)
        lesson = self._lesson_on(output, taught)
        if self.distil_raw:  # the network is also shown the samples as they are
            raw = torch.cat([self.model.train_forward(self._raw(one)) for one in shown])
            lesson = (lesson + self._lesson_on(output._replace(logits=raw), taught)) / 2
        said = lesson.detach()
        self._lesson = said if self._lesson is None else self._lesson + said
        return loss + self.distil * lesson

    def _raw(self, shown: Shown) -> Tensor:
        """The samples, each batch with its mirror images behind, as outputs have them."""
        return torch.cat([self.views.plain(one.x) for one in shown.samples])

    def _lesson_on(self, output: Output, taught: Tensor) -> Tensor:
        return distillation(output, taught, self.seen, self.distil_temperature)
