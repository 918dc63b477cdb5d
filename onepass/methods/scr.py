"""Supervised contrastive replay: pull the classes apart in feature space, and predict by the
nearest class mean of the memory.

Paper: Mai et al., "Supervised Contrastive Replay: Revisiting the Nearest Class Mean Classifier in
Online Class-Incremental Continual Learning", CVPR workshops 2021. With h the backbone's features,
g a two-layer projection to 128 numbers, X the stream batch and a draw from the memory (current
classes included), and I all views, X and aug(X):

    z_i = g(h(x_i)) / |g(h(x_i))|
    L   = E_{i in I} -1/|P(i)| sum_{p in P(i)} log [e^{z_i z_p / t} / sum_{a != i} e^{z_i z_a / t}]

where P(i) are the other views of i's class. A sample is predicted by the nearest class mean, where
u = h / |h| and M_c are the raw samples of class c in the memory:

    mu_c = sum_{x in M_c} u(x) / |sum_{x in M_c} u(x)|        argmin_c |u(x) - mu_c|

At the end of each task there is a review: one pass over the memory with the same loss, its
gradients divided by 10.

Decisions:

- The first view is not augmented, as in the authors' code; `first_view` can change that. Mirror
  images, where they are asked for, are further views of their samples.
- Both views have a forward of their own (so BatchNorm sees each alone), as in the authors' code.
- The first batch of all meets an empty memory. It is stored and not trained on, as in the authors'
  code: there is no forward, and no weight decay moves a parameter.
- The head's linear rows take no part: they never train, `head` changes nothing, and the gradient
  probe, which needs logits, has nothing to see.
- Dividing the gradients of a review by 10 makes the steps of SGD ten times smaller; those of Adam
  only as far as its moments remember larger ones.

Departures from the authors' code: a class without samples in the memory has a random mean there;
here it is never predicted. Their review forwards each first view once more to no purpose and drops
a short last batch; here the memory is cut into equal pieces of at most `replay`. Their images are
not normalised and their ResNet18 has 20 channels: `mean`, `std` and `net` are the protocol's.
`augment="contrastive"` is their augmentation but for the order of the jitter's operations (see
`augment.contrastive`). From the paper: none. How the GSA authors ran SCR is known only as far as
batch, replay and augmentation: the rest of the default is ours.
Cost: 2 (batch + replay) images, forward and backward; each task's end twice the memory; before
scores one forward of the memory. Kept: raw sample and label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass.base.parts import ImageCount, Samples, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import supervised_contrastive
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.learning.traits import Traits
from onepass.nets import FeatureClassifier, NearestMean, project, projection_head

VIEWS = 2
REVIEW_DIVISOR = 10


@method(
    "scr",
    paper="Mai et al., Supervised Contrastive Replay",
    year=2021,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class SCR(Replay):
    """Supervised contrastive replay.

    Parameters
    ----------
    memory
        How many samples are kept.
    replay
        How many of them are trained with each stream batch, and at once in a review.
    temperature
        What similarities are divided by.
    first_view
        The first of a sample's two views: `plain`, or `augmented` as the second is.
    review
        Whether the memory is trained on once more when a task has ended.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.SCR(memory=100, seed=0), stream)
    >>> last.accuracy > 85
    True
    """

    temperature: float = 0.1
    first_view: Literal["plain", "augmented"] = "plain"
    review: bool = True

    traits: ClassVar[Traits] = Traits(
        least_memory=1,
        unsupported={
            "distil": "features are trained, and there are no logits",
            "norms": "scores come from features of the memory by the running statistics",
        },
        exempt={
            "every_parameter_gets_a_gradient": "the head's rows take no part in loss or prediction",
            "a_frozen_head_stays": "the head's rows never train, in the first task either",
        },
    )
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "optimizer": "sgd",
                "lr": 0.1,
                "weight_decay": 0.0,
                "replay": 100,
                "temperature": 0.1,
                "augment": "contrastive",
            },
            "RaptorMai/online-continual-learning 6175ca0: config_CVPR/agent/scr (learning rate, "
            "decay, memory batch, temperature, review; its README has temperature 0.07), "
            "general_main.py (plain SGD), agents/scr.py (augmentation, first view)",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "temperature", self.temperature > 0, "positive")

    def extra_modules(self, features: int, rng: torch.Generator) -> dict[str, nn.Module]:
        return {"projection": projection_head(features, rng)}

    def cost(self, batch: int) -> ImageCount:
        return ImageCount(trained=VIEWS * (batch + self.replay) * self.views_per_sample)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # (b)
        loss = torch.zeros((), device=self.trainer.torch_device)
        if self.steps:  # before, the memory is empty; no graph is captured before the second step
            replay = self.store.draw(self.replay, fallback=stream)  # (r)
            loss = self.contrast(stream.then(replay))
        self.keep(x, y)
        if self.steps:
            self.descend(loss)
        return Step.of(loss)

    def contrast(self, samples: Samples) -> Tensor:
        """L over two views of each sample."""
        plain = self.views.plain(samples.x)  # X, n = b + r samples
        first = plain if self.first_view == "plain" else self.views.augmented(plain)
        second = self.views.augmented(plain)
        z = torch.cat([project(self.model, self.model.features(v)) for v in (first, second)])
        views = VIEWS * self.views_per_sample  # of each sample, so that z is (views n, 128)
        y, weight = (part.repeat(views) for part in (samples.y, samples.weight))
        return supervised_contrastive(z, y, weight, self.temperature)

    def on_task_end(self) -> None:
        """The review: the memory in random order, each sample once."""
        held = int(self.store.size)
        if not self.review or not held:
            return
        order = torch.randperm(
            held, generator=self.trainer.rngs["draws"], device=self.trainer.torch_device
        )
        for slots in torch.tensor_split(order, math.ceil(held / self.replay)):
            weight = torch.ones(len(slots), device=self.trainer.torch_device)
            # all that are held count: this is no draw with padding
            samples = Samples(self.store.x[slots], self.store.y[slots], weight)
            self.descend(self.contrast(samples) / REVIEW_DIVISOR)
        self.trainer.count_images(
            "task ends", ImageCount(trained=VIEWS * held * self.views_per_sample)
        )

    def scorer(self) -> nn.Module:
        """The nearest of the class means of the memory as it is."""
        held = int(self.store.size)
        features = self.trainer.features_of(
            self.store.x[:held], self.trainer.predicting_model
        )  # u before it is normalised
        weight = torch.ones(held, device=self.trainer.torch_device)
        means = NearestMean(features, self.store.y[:held], weight, self.model.head.capacity)
        self.trainer.count_images("scores", ImageCount(trained=0, scored=held))
        return FeatureClassifier(self.trainer.predicting_model, means)
