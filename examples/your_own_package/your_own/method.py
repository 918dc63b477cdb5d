"""Experience replay with a weight for the memory.

Paper: none; an example. With a stream batch X^new and a draw X^buf from the memory:

    L = (1 - share) E_{X^new} -log p_y + share E_{X^buf} -log p_y

Departures: experience replay is 2 L at share = 1/2.
Cost: batch + replay images, forward and backward. Kept: raw sample and label.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from onepass.base.parts import Samples, Step
from onepass.base.settings import require
from onepass.functional.losses import cross_entropy
from onepass.learning.registry import method
from onepass.learning.replay import Replay


@method("weighted-er", paper="none, an example", year=0)
@dataclass(kw_only=True, eq=False)
class WeightedER(Replay):
    """Experience replay with a weight for the memory.

    Parameters
    ----------
    share
        Weight of the replay loss, from 0 to 1.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(WeightedER(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    share: float = 0.7

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "share", 0 <= self.share <= 1, "between 0 and 1")

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                              (b)
        replay = self.store.draw(self.replay, fallback=stream)  # X^buf      (r)
        stream_out, replay_out = self.forward(stream, replay)  # logits      (b, C) (r, C)

        stream_loss = cross_entropy(stream_out, among=self.seen)
        replay_loss = cross_entropy(replay_out, among=self.seen)
        loss = (1 - self.share) * stream_loss + self.share * replay_loss

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, stream_out, replay_out)
