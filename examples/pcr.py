"""Proxy-based contrastive replay: pull every sample to the proxy of its class, and push it away
from the proxies of all classes in the step. A class weighs as much as it has samples in the step.

Paper: Lin et al., "PCR: Proxy-based Contrastive Replay for Online Class-Incremental Continual
Learning", CVPR 2023. h are the backbone's features, w_c is the proxy of class c (its row of the
head), t is the temperature. I are two views of each sample of the stream batch and of a draw from
the memory:

    s_ic = cos(h(x_i), w_c) / t
    L    = E_{i in I} -log [e^{s_iy_i} / sum_{k in I} e^{s_iy_k}]

n_c is the number of views of class c in I, so the sum equals sum_c n_c e^{s_ic}. The prediction is
the class with the highest s among the classes seen so far.

Decisions: stream and replay have separate forward passes, as in the authors' code.
Departures from the authors' code (FelixHuiweiLin/PCR): their first view is the unchanged sample;
here both views are augmented. They do not train while the memory is empty; here the stream batch is
trained then. Optimiser, network and numbers of samples are the protocol's; theirs are SGD at 0.1, a
narrow ResNet18, and a draw of 10.
Cost: 2 (batch + replay) images, forward and backward. Kept: raw samples and labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import onepass
from onepass.base.parts import ImageCount, Output, Samples, Step
from onepass.base.settings import require
from onepass.functional.losses import mean, one_hot
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.nets import Head, cosine_head


@method("pcr", paper="Lin et al., PCR: Proxy-based Contrastive Replay", year=2023)
@dataclass(kw_only=True, eq=False)
class PCR(Replay):
    """Proxy-based contrastive replay.

    Parameters
    ----------
    temperature
        Temperature t, which divides the cosines.

    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(PCR(memory=100, seed=0), stream)
    >>> last.accuracy > 85
    True
    """

    temperature: float = 0.09

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "temperature", self.temperature > 0, "positive")

    def make_head(self, features: int, rng: torch.Generator) -> Head:
        return cosine_head(features, rng, scale=1 / self.temperature)

    def cost(self, batch: int) -> ImageCount:
        return ImageCount(trained=2 * (batch + self.replay) * self.views_per_sample)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # (b)
        replay = self.store.draw(self.replay, fallback=stream)  # (r)
        outputs = self.forward(stream.then(stream), replay.then(replay), apart=True)
        loss = proxy_contrast(Output.of_all(outputs))

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, *outputs)


def proxy_contrast(out: Output) -> Tensor:
    """Returns L over the views of an output whose logits are s. Samples of weight 0 do not count.

    >>> two = Output(torch.tensor([[3.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 1]), torch.ones(2))
    >>> proxy_contrast(two)  # log(1 + e^-2) for both samples
    tensor(0.1269)
    """
    counts = out.weight @ one_hot(out.y, out.logits.shape[1]).float()  # n_c  (C)
    others = (out.logits + counts.log()).logsumexp(dim=1)  # log sum_c n_c e^{s_ic}  (n)
    own = out.logits.gather(1, out.y.unsqueeze(1)).squeeze(1)  # own class: s_iy  (n)
    return mean(others - own, out.weight)


if __name__ == "__main__":
    stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    for learner in (onepass.ER(memory=100, seed=0), PCR(memory=100, seed=0)):
        *_, last = onepass.evaluate(learner, stream)
        print(f"{learner.key}: accuracy {last.accuracy:.1f} %")
