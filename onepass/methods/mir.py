"""Maximally interfered retrieval: replay what the step on the stream batch would harm most.

Paper: Aljundi et al., "Online Continual Learning with Maximally Interfered Retrieval", NeurIPS
2019, the variant for experience replay (ER-MIR). X^new is the stream batch. C candidates are drawn
at random from the memory:

    g       = grad E_{X^new} -log p_y(theta)
    theta'  = theta - lr g                             a virtual step, never taken
    s(x)    = -log p_y(x; theta') + log p_y(x; theta)  what the step would cost candidate x
    X^buf   = the m = `replay` candidates of the highest s
    L       = E_{X^new} -log p_y + E_{X^buf} -log p_y

The gradient of L is g plus that of its second term, so g is computed only once.

Decisions, because the paper is silent or because `replay` is 64 here:

- C = 320. The authors' code and RaptorMai's use C = 50 and m = 10. With m = 64, 50 candidates would
  leave nothing to choose, and the method would silently be plain replay of 50 samples. 320 keeps
  the ratio of 5. Fewer candidates than `replay` are refused. The GSA authors' C is unknown.
- The virtual step is a plain gradient step with the optimiser's `lr`, without moments or decay, for
  every optimiser. At Adam's 1e-3 the scores are small. Their order is then that of -g.g_x, where
  g_x is the gradient of the loss of candidate x.
- Candidates are scored as they are stored, without augmentation. The chosen ones are augmented
  anew.
- Scores are computed in fp32 in any training precision, because at this learning rate they are as
  small as the rounding of bf16. On a GPU convolutions still multiply in TF32, as everywhere here.
- Rows of a frozen head stay fixed in the virtual step too.

Departures:

- From the authors' code: they replay from the second task on and exclude the running task. Here any
  stored sample is a candidate at any time, as in RaptorMai/online-continual-learning. Their MNIST
  runs compare with a candidate's best past loss; this file has only the score above.
- From both codes: candidates are scored in evaluation mode. Both codes score in training mode,
  which moves BatchNorm's running statistics and makes a score depend on the other candidates.
- From both codes: the softmax runs over the classes seen so far, not over all classes of the
  dataset.

Cost: batch + replay images, forward and backward, in two passes (BatchNorm sees them apart), and 2
C forward only; one copy of the parameters. Kept: raw samples and labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from onepass.base.parts import ImageCount, Output, Samples, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import cross_entropy, sample_cross_entropy
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.nets import add_gradients, logits_with, parameters_after_step


def highest_scored(scores: Tensor, samples: Samples, count: int) -> Samples:
    """Returns the `count` samples with the highest scores; samples of weight 0 come last.

    >>> some = Samples(torch.eye(3), torch.tensor([5, 6, 7]), torch.tensor([1.0, 1.0, 0.0]))
    >>> highest_scored(torch.tensor([0.1, 0.2, 0.3]), some, 2).y
    tensor([6, 5])
    """
    chosen = scores.masked_fill(samples.weight == 0, -torch.inf).topk(count).indices
    return Samples(*(part.index_select(0, chosen) for part in samples))


@method(
    "mir",
    paper="Aljundi et al., Online Continual Learning with Maximally Interfered Retrieval",
    year=2019,
)
@dataclass(kw_only=True, eq=False)
class MIR(Replay):
    """Experience replay of the samples that the coming step would harm most.

    Parameters
    ----------
    memory
        Number of samples in the memory.
    replay
        Number of candidates that are replayed with each stream batch.
    candidates
        Number of samples drawn at random as candidates, at least `replay`. With exactly `replay`
        all are replayed; five times as many are usual.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.MIR(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    candidates: int = 320

    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "optimizer": "sgd",
                "lr": 0.1,
                "weight_decay": 0.0,
                "replay": 10,
                "candidates": 50,
                "augment": "none",
            },
            "optimass/Maximally_Interfered_Retrieval, the defaults of its er_main.py, which "
            "RaptorMai/online-continual-learning has too",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        enough = self.candidates >= self.replay
        require(self, "candidates", enough, f"at least {self.replay} (replay)")

    def cost(self, batch: int) -> ImageCount:
        trained = (batch + self.replay) * self.views_per_sample
        return ImageCount(trained, scored=2 * self.candidates)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                 (b)
        (stream_out,) = self.forward(stream)  # logits                  (b, C)
        stream_loss = cross_entropy(stream_out, among=self.seen)
        g = self.trainer.gradients(stream_loss)

        candidates = self.store.draw(self.candidates, fallback=stream)  #  (c)
        harm = self.interference(candidates, g)  # scores s                (c)
        replay = highest_scored(harm, candidates, self.replay)  # X^buf    (m)
        (replay_out,) = self.forward(replay)  # logits                  (m, C)
        replay_loss = cross_entropy(replay_out, among=self.seen)

        self.keep(x, y)
        self.trainer.descend_along(add_gradients(g, self.trainer.gradients(replay_loss)))
        loss = stream_loss + replay_loss
        return Step.of(loss, stream_out, replay_out, stream=stream_loss, replay=replay_loss)

    def interference(self, samples: Samples, gradients: Sequence[Tensor]) -> Tensor:
        """Returns s(x), (c): the rise of each sample's loss after a virtual step against these
        gradients."""
        inputs = self.views.normalise(samples.x)  # not augmented
        virtual = parameters_after_step(self.model, gradients, self.lr)  # theta'
        before, after = (
            Output(logits_with(self.trainer.eval_model, theta, inputs), samples.y, samples.weight)
            for theta in ({}, virtual)
        )
        return sample_cross_entropy(after, self.seen) - sample_cross_entropy(before, self.seen)
