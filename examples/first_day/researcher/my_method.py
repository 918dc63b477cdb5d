"""Experience replay with a focal loss: a researcher's idea as a method.

Paper: none; the loss is that of Lin et al., "Focal Loss", ICCV 2017. With a stream batch X^new, a
draw X^buf from the memory and p the softmax over the classes seen so far:

    L = E_{X^new} -log p_y + E_{X^buf} -(1 - p_y)^gamma log p_y

Departures: experience replay is gamma = 0.
Cost: batch + replay images, forward and backward. Kept: raw sample and label.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from onepass.base.parts import Samples, Step
from onepass.base.settings import require
from onepass.functional.losses import cross_entropy, mean, sample_cross_entropy
from onepass.learning.registry import method
from onepass.learning.replay import Replay


@method("focal-er", paper="none, an example", year=0)
@dataclass(kw_only=True, eq=False)
class FocalER(Replay):
    """Experience replay with a focal loss on samples from the memory.

    Parameters
    ----------
    gamma
        Exponent of the focal loss: larger values give confident samples less weight.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(FocalER(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    gamma: float = 1.0

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "gamma", self.gamma >= 0, "zero or more")

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                              (b)
        replay = self.store.draw(self.replay, fallback=stream)  # X^buf      (r)
        stream_out, replay_out = self.forward(stream, replay)  # logits      (b, C) (r, C)

        stream_loss = cross_entropy(stream_out, among=self.seen)
        surprise = sample_cross_entropy(replay_out, among=self.seen)  # -log p_y  (r)
        replay_loss = mean((1 - (-surprise).exp()) ** self.gamma * surprise, replay_out.weight)
        loss = stream_loss + replay_loss

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, stream_out, replay_out, stream=stream_loss, replay=replay_loss)
