"""Learning without forgetting: an example of your own method, with the previous network as a
teacher.

Paper: Li, Hoiem, "Learning without Forgetting", ECCV 2016. The previous network is a copy of the
network at the last boundary. N are the classes that are new since then, K the classes that the
previous network knew. o are the network's logits of a view of the stream batch X^new. o' are the
previous network's logits of the same view:

    L = E_{X^new} -log softmax_N(o)_y + strength T^2 E_{X^new} KL(softmax_K(o'/T) || softmax_K(o/T))

Departures: one pass over the stream and one head. The paper trains for many epochs, first the new
rows alone, and knows the task of each test sample.
Cost: the batch, forward and backward, and a forward pass through the previous network. No sample is
kept, but the previous network is, which is as large as the network itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

import onepass
from onepass.base.parts import ImageCount, Samples, Step
from onepass.base.settings import require
from onepass.functional.losses import cross_entropy, distillation
from onepass.learning.network_copies import PreviousNetwork
from onepass.learning.network_learner import NetworkLearner
from onepass.learning.registry import method
from onepass.learning.traits import Traits


@method("lwf", paper="Li, Hoiem, Learning without Forgetting", year=2016, boundaries="uses")
@dataclass(kw_only=True, eq=False)
class LwF(NetworkLearner):
    """Learning without forgetting.

    Parameters
    ----------
    strength
        Weight of the distillation loss.
    temperature
        Temperature T, which divides the logits of both networks.

    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(LwF(seed=0), stream)
    >>> last.accuracy > 25
    True
    """

    strength: float = 1.0
    temperature: float = 2.0

    previous: PreviousNetwork = field(init=False)
    traits: ClassVar[Traits] = Traits(exempt={"memory_reaches_the_gradient": "it keeps no samples"})

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "strength", self.strength >= 0, "zero or more")
        require(self, "temperature", self.temperature > 0, "positive")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.previous = PreviousNetwork(self.trainer)  # copied at every boundary

    def cost(self, batch: int) -> ImageCount:
        views = batch * self.views_per_sample
        return ImageCount(trained=views, scored=views)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                (b)
        (stream_out,) = self.forward(stream)  # logits o               (b, C)
        teacher_logits = self.previous(stream_out.views)  # logits o'  (b, C)

        stream_loss = cross_entropy(stream_out, among=self.new)
        old_loss = distillation(stream_out, teacher_logits, self.previous.known, self.temperature)
        loss = stream_loss + self.strength * old_loss

        self.descend(loss)
        return Step.of(loss, stream_out, stream=stream_loss, old=old_loss)


if __name__ == "__main__":
    stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    for learner in (onepass.Finetune(seed=0), LwF(seed=0)):
        *_, last = onepass.evaluate(learner, stream)
        print(f"{learner.key}: accuracy {last.accuracy:.1f} %")
