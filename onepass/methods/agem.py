"""Averaged gradient episodic memory: a step on the stream batch must not, to first order, raise the
mean loss on a draw from the memory.

Paper: Chaudhry et al., "Efficient Lifelong Learning with A-GEM", ICLR 2019. g is the gradient of
the stream batch X^new, r that of a draw X^buf from the memory, both at the same parameters:

    g = grad E_{X^new} -log p_y        r = grad E_{X^buf} -log p_y
    g~ = g - min(g.r, 0) / (r.r) r     from the second task on; g itself in the first
    theta <- optimiser(theta, g~)

Hence g~.r >= 0 from the second task on. If g and r are in conflict (g.r < 0), g~.r = 0. If not, g~
is g.

Decisions:

- The guarantee holds for g~ only. Adam's moments and the coupled weight decay come after the
  projection and are not projected.
- In the first task, and while the memory is empty, r is computed but does not change g. A step that
  is captured as a CUDA graph cannot leave it out. BatchNorm's running statistics see that forward
  pass too.
- Rows of a frozen head do not move, so they take no part in g.r and r.r.

Departures:

- From the paper and its authors' code: the memory is a reservoir over the whole stream, the running
  task included, as in RaptorMai/online-continual-learning. The original stores a fixed number of
  samples of each task and compares g with earlier tasks only.
- From both: the softmax runs over the classes seen so far. The original has one head for each task
  and is given the task. RaptorMai's head covers all classes of the dataset.
- From RaptorMai's code: no reduced ResNet18. Images are augmented unless `augment` is none, and
  short last batches are trained. The GSA authors' choices are unknown.

The method never trains on the memory. It only removes a component from the gradient, so on
class-incremental streams its accuracy is near that of fine-tuning, as expected.
Cost: batch + replay images, forward and backward, in two passes (BatchNorm sees them apart), and
two dot products over all parameters. Kept: raw samples and labels.
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
    """Returns g~ = g - min(g.r, 0) / (r.r) r if `applies` is true, else g. If r is 0, it is g too.

    `gradient` is g and `reference` is r, one tensor for each parameter.

    >>> g, r = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])
    >>> project([g], [r], torch.tensor(True))
    [tensor([0.5000, 0.5000])]
    """
    g, r = (torch.cat([piece.flatten() for piece in each]) for each in (gradient, reference))
    square = torch.dot(r, r).clamp(min=torch.finfo(r.dtype).tiny)  # r = 0 gives factor 0, not nan
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
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for the gradient that a step must not oppose.

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
        stream = Samples.of(x, y)  # X^new                               (b)
        (stream_out,) = self.forward(stream)  # logits                (b, C)
        stream_loss = cross_entropy(stream_out, among=self.seen)
        g = self.trainer.gradients(stream_loss)

        replay = self.store.draw(self.replay, fallback=stream)  # X^buf  (r)
        (replay_out,) = self.forward(replay)  # logits                (r, C)
        replay_loss = cross_entropy(replay_out, among=self.seen)  # 0 if the memory is empty
        r = zero_frozen_rows(self.model, self.trainer.gradients(replay_loss))

        later_task = self.old.any()  # an old class exists: this is not the first task
        self.keep(x, y)
        self.trainer.descend_along(project(g, r, applies=later_task))  # along g~, projected
        return Step.of(stream_loss, stream_out, replay=replay_loss)
