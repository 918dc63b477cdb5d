"""Plain training on each stream batch (`finetune`), the lower bound for all methods; and the same
on all classes as one task (`joint`), a reference.

X^new is the stream batch:

    L = E_{X^new} -log softmax_{seen}(o)_y

Departures: none; there is no paper. `joint` is the same learner for a stream of one shuffled task
of all classes. It is the reference curve in the GSA paper's figures and not online
class-incremental learning.
Cost: the batch, forward and backward. Nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from onepass.base.parts import ImageCount, Samples, Step
from onepass.functional.losses import cross_entropy
from onepass.learning.network_learner import NetworkLearner
from onepass.learning.registry import method
from onepass.learning.traits import Traits


@method("finetune", paper="none: the lower bound", year=0)
@dataclass(kw_only=True, eq=False)
class Finetune(NetworkLearner):
    """Trains on each batch of the stream, without replay: the lower bound.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> learner = onepass.Finetune(seed=0)
    >>> *_, last = onepass.evaluate(learner, stream)
    >>> 15 < last.accuracy < 25      # it knows the last two of ten classes
    True
    """

    traits: ClassVar[Traits] = Traits(
        near_fine_tuning=True,
        exempt={
            "memory_reaches_the_gradient": "it keeps no samples",
            "beats_finetuning": "it is fine-tuning",
        },
    )

    def cost(self, batch: int) -> ImageCount:
        return ImageCount(trained=batch * self.views_per_sample)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                 (b)
        (stream_out,) = self.forward(stream)  # logits  (b, C)
        loss = cross_entropy(stream_out, among=self.seen)
        self.descend(loss)
        return Step.of(loss, stream_out)


@method(
    "joint",
    paper="none: all classes as one task",
    year=0,
    one_task=True,
)
@dataclass(kw_only=True, eq=False)
class Joint(Finetune):
    """Trains as `Finetune` does, on a stream that has all classes as one shuffled task.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=1)
    >>> *_, last = onepass.evaluate(onepass.Joint(seed=0), stream)
    >>> last.accuracy > 85
    True
    """

    traits: ClassVar[Traits] = replace(Finetune.traits, near_fine_tuning=False)
