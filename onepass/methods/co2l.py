"""Co2L, contrastive continual learning: new classes are pulled apart from all others, and the
relations between samples stay as the previous network saw them. Scores come from a linear
classifier that is fitted to the features of the memory.

Paper: Cha, Lee, Shin, "Co2L: Contrastive Continual Learning", ICCV 2021. h are the backbone's
features, g is a two-layer projection to 128 numbers. X is the stream batch and a draw from the
memory, I are two augmented views of X, and z_i = g(h(x_i)) / |g(h(x_i))|.

Asymmetric supervised contrast: only views of new classes N are anchors, but they are compared with
all views. P(i) are the other views of i's class. The mean is over all views:

    L_asym = (t / 0.07) 1/|I| sum_{i in I, y_i in N} -1/|P(i)| sum_{p in P(i)}
             log [e^{z_i z_p / t} / sum_{a != i} e^{z_i z_a / t}]

Instance-wise relation distillation, from the second task on, with z' from the previous network:

    r_ij(z, k) = e^{z_i z_j / k} / sum_{a != i} e^{z_i z_a / k}
    L_ird = E_{i in I} sum_{j != i} -r_ij(z', k') log r_ij(z, k)        (k' = 0.01, k = 0.2)

    L = L_asym + distillation L_ird

Predictions come from a linear classifier of u = h / |h| that is fitted to the memory:

    min_{W, b} E_{c seen} E_{x in memory, y = c} -log softmax_{seen}(W u(x) + b)_c
               + ridge / 2 (|W|^2 + |b|^2)

Decisions: how the GSA authors made the method online is not known, so these are ours.

- The classifier is fitted anew for every state that is scored, so the learner can predict at any
  time. The authors fit it once, at the end, by 100 epochs of SGD that stop before the minimum. They
  use the memory and all data of the last task. Here that data is gone.
- The fit runs L-BFGS to the minimum, on features that are computed once, without augmentation. It
  draws nothing at random, and it gets as close to the minimum with few samples as with many. A
  small ridge (1e-5) keeps the minimum finite. Classes weigh the same, as in the authors' sampling.
  Features have unit length; theirs are not normalised.
- Replay begins with the first stored sample and includes current classes. Replayed samples of
  current classes are anchors, like those of the stream. The memory is a reservoir; theirs is
  balanced at every boundary.
- Both views of stream and replay share one joint forward pass, as in the authors' code. With
  `mirror`, mirror images are further views.
- The previous network is in evaluation mode (`teacher`): BatchNorm has its running statistics. The
  authors' is in training mode, in which it has those of the batch. At k' = 0.01 small differences
  of features are large differences of r', so this may matter; it has not been measured here.
- The head's linear rows are not used. They never train, and `head` changes nothing. The probe
  `balance` measures gradients on logits, so it has nothing to measure.

Departures: one pass over the stream. The authors train 500 epochs of the first task and 100 of each
other task, with batches of 512 and a cosine schedule. `augment="contrastive"` is their augmentation
except for its order of colour operations. `optimizer="nesterov"` of the official preset has their
momentum, which is not Nesterov's.
Cost: 2 (batch + replay) images, forward and backward, and once more forward through the previous
network; one forward pass of the memory before scores. Kept: raw samples and labels; the previous
network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.base.parts import ImageCount, Samples, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import mean, one_hot, supervised_contrastive
from onepass.learning.network_copies import PreviousNetwork
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.learning.traits import Traits
from onepass.nets import (
    Classifier,
    FeatureClassifier,
    project,
    projection_head,
    tied_batch_norm_copy,
)

VIEWS = 2
BASE_TEMPERATURE = 0.07  # the 0.07 of L_asym
RIDGE = 1e-5  # small against the loss, large enough for a finite minimum
MOST_STEPS = 300  # of L-BFGS, which stops earlier when it converges


def relation_distillation(
    z: Tensor, previous: Tensor, weight: Tensor, temperature: float, previous_temperature: float
) -> Tensor:
    """Returns L_ird: the mean over i of sum_{j != i} -r_ij(previous, k') log r_ij(z, k), where k is
    `temperature` and k' is `previous_temperature`.

    `z` and `previous` have unit rows. Samples of weight 0 are neither i nor j. At least two samples
    must have weight 1.

    >>> same = torch.ones(4, 1)
    >>> float(relation_distillation(same, same, torch.ones(4), 0.2, 0.01).exp())  # 3 equal others
    3.0
    """
    others = (weight > 0) & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    now = (z @ z.T / temperature).masked_fill(~others, -torch.inf).log_softmax(dim=1)
    then = previous @ previous.T / previous_temperature
    then = then.masked_fill(~others, -torch.inf).softmax(dim=1)  # (n, n)
    each = -(then * now.masked_fill(~others, 0)).sum(dim=1)
    return mean(each, weight)


class FittedLinear(nn.Module):
    """A linear classifier of features, which it scales to unit length. Its constructor fits it to
    samples, and every class weighs the same in the fit.

    Parameters
    ----------
    seen
        Mask (C) of the classes seen. The softmax runs over these.

    >>> features, y = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.1, 1.0]]), torch.tensor([0, 1, 1])
    >>> classify = FittedLinear(features, y, seen=torch.tensor([True, True, False]))
    >>> classify(features)[:, :2].argmax(dim=1)
    tensor([0, 1, 1])
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, features: Tensor, y: Tensor, seen: Tensor) -> None:
        super().__init__()
        own = one_hot(y, len(seen)).to(features.dtype)  # (n, C)
        share = 1 / own.sum(dim=0).index_select(0, y)  # 1 / samples of its class  (n)
        share = share / share.sum()
        inputs = F.pad(F.normalize(features), (0, 1), value=1.0)  # last column: bias
        rows = torch.zeros(len(seen), inputs.shape[1], device=features.device)  # W and b

        def loss() -> Tensor:
            logits = (inputs @ rows.T).masked_fill(~seen, -torch.inf)
            log_p = logits.log_softmax(dim=1)
            error = (log_p.exp() - own) * share.unsqueeze(1)  # dloss/dlogits
            rows.grad = error.T @ inputs + RIDGE * rows
            each = -log_p.gather(1, y.unsqueeze(1)).squeeze(1)
            return (share * each).sum() + RIDGE / 2 * rows.square().sum()

        solver = torch.optim.LBFGS([rows], max_iter=MOST_STEPS, line_search_fn="strong_wolfe")
        solver.step(loss)  # type: ignore[no-untyped-call]
        self.register_buffer("weight", rows[:, :-1])
        self.register_buffer("bias", rows[:, -1])

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(F.normalize(features), self.weight, self.bias)


@method(
    "co2l",
    paper="Cha et al., Co2L: Contrastive Continual Learning",
    year=2021,
    boundaries="uses",
    revision=2,
)
@dataclass(kw_only=True, eq=False)
class Co2L(Replay):
    """Contrastive continual learning.

    Parameters
    ----------
    memory
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for each stream batch.
    temperature
        Temperature t of the contrastive term.
    distillation
        Weight of the relation distillation.
    relation_temperature
        Temperature k of the relations r in the network.
    previous_temperature
        Temperature k' of the relations r in the previous network.
    teacher
        Mode of the previous network: `evaluation`, with the BatchNorm statistics of its training,
        or `training`, with those of the batch, as in the authors' code.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.Co2L(memory=100, seed=0), stream)
    >>> last.accuracy > 85
    True
    """

    temperature: float = 0.5
    distillation: float = 1.0
    relation_temperature: float = 0.2
    previous_temperature: float = 0.01
    teacher: Literal["evaluation", "training"] = "evaluation"

    previous: PreviousNetwork = field(init=False)
    _teacher: Classifier = field(init=False)
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
                "optimizer": "nesterov",
                "lr": 0.5,
                "weight_decay": 1e-4,
                "temperature": 0.5,
                "distillation": 1.0,
                "relation_temperature": 0.2,
                "previous_temperature": 0.01,
                "augment": "contrastive",
                "teacher": "training",
            },
            "chaht01/Co2L 3af7064: run.sh (rate, temperatures) and main.py (momentum 0.9, "
            "decay, weight of the distillation, augmentation, mode of the teacher), for CIFAR10",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "distillation", self.distillation >= 0, "zero or more")
        for name in ("temperature", "relation_temperature", "previous_temperature"):
            require(self, name, getattr(self, name) > 0, "positive")

    def extra_modules(self, features: int, rng: torch.Generator) -> dict[str, nn.Module]:
        return {"projection": projection_head(features, rng)}

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().build(shape, dtype)
        self.previous = PreviousNetwork(self.trainer)  # copied at every boundary
        self._teacher = self.previous.model
        if self.teacher == "training":
            # shares all tensors but those of a head that grows, which it does not use
            self._teacher = tied_batch_norm_copy(self.previous.model, self.model)

    def cost(self, batch: int) -> ImageCount:
        images = VIEWS * (batch + self.replay) * self.views_per_sample
        return ImageCount(trained=images, scored=images)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # (b)
        replay = self.store.draw(self.replay, fallback=stream)  # (r)
        samples = stream.then(replay)  # X, n = b + r samples
        views = torch.cat([self.views(samples.x) for _ in range(VIEWS)])  # all views I
        times = VIEWS * self.views_per_sample  # views of each sample
        rows, weight = (part.repeat(times) for part in (samples.y, samples.weight))
        z = project_views(self.model, views)  # (times n, 128)
        with torch.no_grad():
            z_previous = project_views(self._teacher, views)  # projections z'

        anchors = self.new.index_select(0, rows).to(weight.dtype)
        share = (weight * anchors).sum() / weight.sum()  # anchors / all views
        contrast = supervised_contrastive(z, rows, weight, self.temperature, anchors)
        contrast = self.temperature / BASE_TEMPERATURE * share * contrast  # L_asym
        temperatures = self.relation_temperature, self.previous_temperature
        relations = relation_distillation(z, z_previous, weight, *temperatures)  # L_ird
        relations = relations * self.previous.known.any()  # 0 in the first task
        loss = contrast + self.distillation * relations

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, contrast=contrast, relations=relations)

    @torch.no_grad()
    def scorer(self) -> nn.Module:
        """Returns the backbone with a linear classifier that is fitted to the current memory."""
        held = int(self.store.size)  # samples in the memory
        features = self.trainer.features_of(self.store.x[:held], self.trainer.predicting_model)
        self.trainer.count_images("scores", ImageCount(trained=0, scored=held))
        return FeatureClassifier(
            self.trainer.predicting_model, FittedLinear(features, self.store.y[:held], self.seen)
        )


def project_views(model: Classifier, views: Tensor) -> Tensor:
    """Returns the projections z of views, (n, 128), in rows of unit length."""
    return project(model, model.features(views))
