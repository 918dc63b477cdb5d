"""Averaged gradient episodic memory: a step on the stream batch may not, to first order, raise the
loss on samples of the memory.

Paper: Chaudhry et al., "Efficient Lifelong Learning with A-GEM", ICLR 2019. With g the
gradient of the stream batch X^new and r that of a draw X^buf from the memory, both at the same
parameters:

    g = grad E_{X^new} -log p_y        r = grad E_{X^buf} -log p_y
    g~ = g - min(g.r, 0) / (r.r) r     from the second task on; g itself in the first
    theta <- optimiser(theta, g~)

so that g~.r >= 0: equality where they were in conflict, g~ = g where they were not.

Decisions:

- The guarantee is about g~. Adam's moments and the coupled weight decay come after the projection,
  and neither is projected.
- In the first task, and while the memory is empty, r is computed and not used, since a captured
  step has one shape; BatchNorm's running statistics see that forward too.
- Rows of a frozen head do not move, so they take no part in g.r and r.r.

Departures:

- From the paper and its authors' code: the memory is a reservoir over the whole stream, the running
  task included, as in RaptorMai/online-continual-learning. The original keeps so many samples of
  each task and compares with earlier tasks only.
- From both: the softmax runs over the classes seen so far. The original has a head for each task
  and is told which to use; RaptorMai's covers all classes of the dataset.
- From RaptorMai's code: no reduced ResNet18; images are augmented unless `augment` is none, and
  short last batches are learned. What the GSA authors used is unknown.

The memory only ever takes something out of the gradient, it is never trained on: an accuracy near
fine-tuning's is what the method gives on class-incremental streams.
Cost: batch + replay images, forward and backward, each on its own (BatchNorm sees them apart), and
two dot products over all parameters. Kept: raw sample and label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from onepass.base.parts import Samples, Step
from onepass.base.settings import Preset
from onepass.functional.losses import cross_entropy
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.learning.traits import Traits
from onepass.nets import add_gradients, zero_frozen_rows


def project(gradient: list[Tensor], reference: list[Tensor], applies: Tensor) -> list[Tensor]:
    """g~ = g - min(g.r, 0) / (r.r) r where it applies, else g; g too where r is 0.

    >>> g, r = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])
    >>> project([g], [r], torch.tensor(True))
    [tensor([0.5000, 0.5000])]
    """
    g, r = (torch.cat([one.flatten() for one in each]) for each in (gradient, reference))
    square = torch.dot(r, r).clamp(min=torch.finfo(r.dtype).tiny)
    factor = torch.dot(g, r).clamp(max=0) / square * applies
    return add_gradients(gradient, reference, -factor)


@method(
    "agem",
    paper="Chaudhry et al., Efficient Lifelong Learning with A-GEM",
    year=2019,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class AGEM(Replay):
    """Averaged gradient episodic memory.

    Parameters
    ----------
    memory
        How many samples are kept.
    replay
        How many of them give the gradient that the step must not oppose.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.AGEM(memory=100, seed=0), stream)
    >>> 10 < last.accuracy < 30      # near fine-tuning, as it should be
    True
    """

    traits: ClassVar[Traits] = Traits(near_fine_tuning=True)
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, "replay": 10, "augment": "none"},
            "RaptorMai/online-continual-learning, its settings for A-GEM in the online protocol "
            "(not the code of A-GEM's authors, which is for tasks with heads of their own)",
        )
    }

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                       (b)
        (stream_out,) = self.forward(stream)  # logits                (b, C)
        stream_loss = cross_entropy(stream_out, among=self.seen)
        g = self.trainer.gradients(stream_loss)

        replay = self.store.draw(self.replay, fallback=stream)  # X^buf       (r)
        (replay_out,) = self.forward(replay)  # logits                (r, C)
        replay_loss = cross_entropy(replay_out, among=self.seen)  # 0, and r = 0, while it is empty
        r = zero_frozen_rows(self.model, self.trainer.gradients(replay_loss))

        later_task = self.old.any()
        self.keep(x, y)
        self.trainer.descend_along(project(g, r, applies=later_task))  # g~
        return Step.of(stream_loss, stream_out, replay=replay_loss)
