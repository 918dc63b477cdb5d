"""A learner that averages itself, learns from its average, and trains more than once on a batch.

Papers: Soutif-Cormerais et al., "Improving Online Continual Learning Performance and Stability with
Temporal Ensembles", 2023 (averaging), and Michel et al., "Rethinking Momentum Knowledge
Distillation in Online Continual Learning", 2024 (learning from it). Nothing here belongs to one
method: whatever a step shows the network by `forward` or `output`, the average is shown too, and

    L + distil T^2 E KL(softmax(average(v) / T) || softmax(network(v) / T))      over classes seen

is what the optimiser descends, where L is the method's own loss and v are the views of the step.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from onepass.copies import Average, Rule
from onepass.losses import distillation
from onepass.nets import Classifier
from onepass.parts import Images, Output, Samples, Show, Step, not_shown
from onepass.steps import Steps
from onepass.trainer import Training


class Shown(NamedTuple):
    """What the network said of some views, and the raw samples that these are of."""

    output: Output
    x: Tensor


@dataclass(kw_only=True, eq=False)
class SelfTaught(Steps, Training):
    """Settings that every method has, and what they do to a step; `onepass.Learner` explains them.

    A method that cannot have one of them says why in `cannot`.
    """

    average: Rule | None = None
    distil: float = 0.0
    distil_temperature: float = 4.0
    distil_raw: bool = False
    repeats: int = 1

    cannot: ClassVar[dict[str, str]] = {}  # settings from above, each with the reason

    averaged: Average | None = field(init=False, repr=False, default=None)
    _shown: list[Shown] = field(init=False, repr=False, default_factory=list)
    _lesson: Tensor | None = field(init=False, repr=False, default=None)

    def check_settings(self) -> None:
        usual = {"average": None, "distil": 0, "repeats": 1}
        for name, why in self.cannot.items():
            self.require(name, getattr(self, name) == usual[name], f"{usual[name]}: {why}")
        decay = self.average if isinstance(self.average, float | int) else 0
        self.require("average", 0 <= decay < 1, "a decay in [0, 1), growing, or none")
        self.require("distil", self.distil >= 0, "zero or more")
        taught = self.average is not None or not self.distil
        self.require("distil", taught, "0 where there is no average, which would be the teacher")
        self.require("distil_temperature", self.distil_temperature > 0, "positive")
        self.require("repeats", self.repeats >= 1, "at least 1")

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

    def output(self, logits: Tensor, batch: Samples, show: Show = not_shown) -> Output:
        out = super().output(logits, batch, show)
        if self.distil and show is not not_shown:
            self._shown.append(Shown(out, batch.x))
        return out

    def descend(self, loss: Tensor) -> None:
        super().descend(self._with_lesson(loss))

    def gradients(self, loss: Tensor) -> list[Tensor]:
        return super().gradients(self._with_lesson(loss))

    def _with_lesson(self, loss: Tensor) -> Tensor:
        """The loss, and what the average teaches on all that was shown since the last time."""
        if not self._shown or self.averaged is None:
            return loss
        output = Output.of_all([one.output for one in self._shown])
        taught = self.averaged(torch.cat([one.output.views for one in self._shown]))  # (n, C)
        lessons = [self._lesson_on(output, taught)]
        if self.distil_raw:  # the network is also shown the samples as they are
            raw = torch.cat([self.views.plain(one.x) for one in self._shown])
            of_raw = output._replace(logits=self.model.train_forward(raw))
            lessons.append(self._lesson_on(of_raw, taught))
        self._shown.clear()
        lesson = torch.stack(lessons).mean()
        said = lesson.detach()
        self._lesson = said if self._lesson is None else self._lesson + said
        return loss + self.distil * lesson

    def _lesson_on(self, output: Output, taught: Tensor) -> Tensor:
        return distillation(output, taught, self.seen, self.distil_temperature)
