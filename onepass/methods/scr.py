"""Supervised contrastive replay: pull the classes apart in feature space, and predict by the
nearest class mean of the memory.

Paper: Mai et al., "Supervised Contrastive Replay: Revisiting the Nearest Class Mean Classifier in
Online Class-Incremental Continual Learning", CVPR workshops 2021. h are the backbone's features, g
is a two-layer projection to 128 numbers. X is the stream batch and a draw from the memory, current
classes included. I are all views, X and aug(X). P(i) are the other views of i's class:

    z_i = g(h(x_i)) / |g(h(x_i))|
    L   = E_{i in I} -1/|P(i)| sum_{p in P(i)} log [e^{z_i z_p / t} / sum_{a != i} e^{z_i z_a / t}]

A sample is predicted by the nearest class mean. u = h / |h|, and M_c are the raw samples of class c
in the memory:

    mu_c = sum_{x in M_c} u(x) / |sum_{x in M_c} u(x)|        argmin_c |u(x) - mu_c|

At the end of each task there is a review: one pass over the memory with the same loss and gradients
divided by 10.

Decisions:

- The first view is not augmented, as in the authors' code; `first_view` can change this. With
  `mirror`, mirror images are further views of their samples.
- The two views have separate forward passes, as in the authors' code, so BatchNorm sees each alone.
- The very first batch meets an empty memory. It is stored and not trained on, as in the authors'
  code: there is no forward pass, and no weight decay moves a parameter.
- The head's linear rows are not used. They never train, and `head` changes nothing. The probe
  `balance` measures gradients on logits, so it has nothing to measure.
- In a review, gradients divided by 10 make the steps of SGD ten times smaller. Those of Adam shrink
  only as far as its moments remember larger gradients.

Departures from the authors' code: a class without samples in the memory has a random mean there;
here it is never predicted. Their review forwards each first view a second time without effect and
drops a short last batch. Here the memory is cut into equal pieces of at most `replay`. Their images
are not normalised and their ResNet18 has 20 channels; `mean`, `std` and `net` here are the
protocol's. `augment="contrastive"` is their augmentation except for the order of the jitter's
operations (see `augment.contrastive`).
Departures from the paper: none. How the GSA authors ran SCR is known only as far as batch, replay
and augmentation; the rest of the default is ours.
Cost: 2 (batch + replay) images, forward and backward; twice the memory at each task's end; one
forward pass of the memory before scores. Kept: raw samples and labels.
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
REVIEW_DIVISOR = 10  # of the gradients in a review


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
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for each stream batch. A batch of a review has at
        most this many.
    temperature
        Temperature t of the similarities.
    first_view
        The first of a sample's two views: `plain`, or `augmented` like the second.
    review
        Whether the network trains on the memory once more at the end of each task.

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
            "distil": "only features are trained, so there are no logits",
            "norms": "scores come from features of the memory under the running statistics",
        },
        exempt={
            "every_parameter_gets_a_gradient": "loss and prediction do not use the head's rows",
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
        # In step 0 the memory is empty. The branch is safe: no graph is captured before step 2.
        if self.steps:
            replay = self.store.draw(self.replay, fallback=stream)  # (r)
            loss = self.contrast(stream.then(replay))
        self.keep(x, y)
        if self.steps:
            self.descend(loss)
        return Step.of(loss)

    def contrast(self, samples: Samples) -> Tensor:
        """Returns L over two views of each sample."""
        plain = self.views.plain(samples.x)  # X, n = b + r samples
        first = plain if self.first_view == "plain" else self.views.augmented(plain)
        second = self.views.augmented(plain)
        z = torch.cat([project(self.model, self.model.features(v)) for v in (first, second)])
        views = VIEWS * self.views_per_sample  # per sample; z is (views n, 128)
        y, weight = (part.repeat(views) for part in (samples.y, samples.weight))
        return supervised_contrastive(z, y, weight, self.temperature)

    def on_task_end(self) -> None:
        """Trains on the memory in random order, each sample once (the review)."""
        held = int(self.store.size)
        if not self.review or not held:
            return
        order = torch.randperm(
            held, generator=self.trainer.rngs["draws"], device=self.trainer.torch_device
        )
        for slots in torch.tensor_split(order, math.ceil(held / self.replay)):
            weight = torch.ones(len(slots), device=self.trainer.torch_device)
            # a draw has weight 0 for padding; these samples are all genuine
            samples = Samples(self.store.x[slots], self.store.y[slots], weight)
            self.descend(self.contrast(samples) / REVIEW_DIVISOR)
        self.trainer.count_images(
            "task ends", ImageCount(trained=VIEWS * held * self.views_per_sample)
        )

    def scorer(self) -> nn.Module:
        """Returns the backbone with the nearest class mean of the current memory."""
        held = int(self.store.size)
        # the features h, which NearestMean normalises to u
        features = self.trainer.features_of(self.store.x[:held], self.trainer.predicting_model)
        weight = torch.ones(held, device=self.trainer.torch_device)
        means = NearestMean(features, self.store.y[:held], weight, self.model.head.capacity)
        self.trainer.count_images("scores", ImageCount(trained=0, scored=held))
        return FeatureClassifier(self.trainer.predicting_model, means)
