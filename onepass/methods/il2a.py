"""IL2A, dual augmentation: mixtures of two new classes are classes of their own. Old classes are
represented by the mean and the spread of their features.

Paper: Zhu et al., "Class-Incremental Learning via Dual Augmentation", NeurIPS 2021. h are the
backbone's features and h' those of the network at the last boundary. w_c and b_c are a row of the
head and its bias, t is a temperature. N are the classes that are new since that boundary.

Class augmentation. X^mix are mixtures of two images of the batch from different classes of N, up to
four times as many as there are images:

    x = l x_i + (1 - l) x_j,    l ~ Beta(20, 20), but 1/2 where it is not between 0.4 and 0.6

Each unordered pair {y_i, y_j} is an auxiliary class with its own row behind the head's rows.
Auxiliary rows start anew with each task.

Semantic augmentation. mu_k, the prototype of class k, and Sigma_k are the mean and the covariance
of its features. The authors replace features drawn around the prototype by a bound. The mean
cross-entropy of features from the normal distribution with mean mu_k and covariance s Sigma_k is at
most that of the logits

    o_kc = w_c mu_k + b_c + s/2 (w_c - w_k)^T Sigma_k (w_c - w_k)        (s = 2.5)

for t = 1. These logits are divided by t afterwards, here and in the authors' code, so the bound
holds for a spread of t s.

A are the auxiliary classes of the running task, O the old classes. X^buf is a draw from the memory,
current classes included:

    L = E_{X^new u X^mix} -log softmax_{seen u A}(o / t)_y + E_{X^buf} -log softmax_{seen}(o / t)_y
      + semantic E_{k in O} -log softmax_{seen}(o_k / t)_k
      + distillation |h - h'|    over all images of the step: a norm, not a mean

In the first task the last two terms are 0.

Decisions: the paper stores no samples. How the GSA authors gave it a memory is not known, so the
replay (second term) and what follows from it are ours:

- mu_k and Sigma_k come from the memory (`prototypes`). At the end of a task the features of all
  stored samples are computed and stored with them. A sample that is overwritten later takes its
  features along. The covariance is never formed: (w_c - w_k)^T Sigma_k (w_c - w_k) is the variance
  over samples of (w_c - w_k) h. A memory of 1000 needs 2 MB of features.
- The paper has mu_k and Sigma_k of all samples of the class, when its own task ended. With
  `prototypes="stream"` they are accumulated over all stream samples instead, from the features that
  training computes: of augmented views, by the network as it was at each step. A memory of 200 has
  20 samples for each of 10 classes, the stream has thousands. 100 classes need 105 MB of
  covariances. Which is better has not been measured on images of objects.
- The loss takes the mean over all old classes that have a prototype. The paper draws 64 old
  classes at random, which gives the same mean on average.
- The pair of the classes a < b of a task, counted from 0, has the number b (b - 1) / 2 + a. The
  number of classes therefore need not be known. Mixtures of pairs with numbers from `pairs` on have
  weight 0.
- Auxiliary rows start at zero, and decay leaves the rows without a pair there.
- `distillation` is 0.1, not the authors' 10. Theirs was tuned for many epochs and keeps the network
  from moving in a single pass. Accuracy on a held-out tenth of digits, M=100, seeds 0 to 2: 10
  gives 75.0, 1 gives 79.3, 0.3 gives 90.5, 0.1 gives 93.3, 0.03 gives 92.4.
- Few samples give a covariance without full rank. Nothing here inverts it, so none is shrunk.
- Stream, mixtures and replay have one joint forward pass. Two images of one class are mixed too, at
  weight 0.

Departures from the authors' code: their code looks up a class's covariance by its label in a list
that has the newest classes first. From the third task on it therefore uses those of other classes;
here each class has its own. Their code runs the backbone twice over each batch. Their network has
attention (CBAM). They train 101 epochs with batches of 64, and half of the classes are in the first
task.
Cost: 5 batch + replay images, forward and backward, and once more forward through the previous
network; one forward pass of the memory at each task's end. Kept: raw samples, labels, features and
a flag for known features; the previous network. With `prototypes="stream"` there is no pass at the
end; instead of features, the mean and the covariance of each row of the head are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass.base.parts import ImageCount, Output, Samples, StatefulPart, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import cross_entropy, one_hot
from onepass.learning.network_copies import PreviousNetwork
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.learning.traits import Traits
from onepass.memory import Reservoir, Store
from onepass.nets import build
from onepass.nets.optimisers import pad_rows, reset_rows

MIXED = 4  # mixtures for each image
BETA = 20  # both parameters of the Beta distribution of l
NEAREST_TO_HALF = 0.1  # a share l further from 1/2 becomes 1/2
SPREAD = 2.5  # s, the factor of Sigma_k


def mixing_shares(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Returns random shares l of this shape.

    torch cannot draw from a Beta distribution with a given generator. But the middle one of 2 n - 1
    uniform numbers has the distribution Beta(n, n)."""
    uniform = torch.rand(*shape, 2 * BETA - 1, generator=rng, device=rng.device)
    drawn = uniform.sort(dim=-1).values[..., BETA - 1]
    return torch.where((drawn - 0.5).abs() > NEAREST_TO_HALF, 0.5, drawn)


def pair_number(a: Tensor, b: Tensor) -> Tensor:
    """Returns the number of a pair of different classes, in any order, from their positions in the
    task.

    >>> pair_number(torch.tensor([0, 2, 1, 0]), torch.tensor([1, 0, 2, 3]))
    tensor([0, 1, 2, 3])
    """
    high = torch.maximum(a, b)
    return high * (high - 1) // 2 + torch.minimum(a, b)


def semantic_logits(
    weight: Tensor, bias: Tensor, features: Tensor, y: Tensor, held: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns o_kc for each class k, (C, C), from features of its samples, and a mask (C) of the
    classes that have samples.

    `weight` (C, F) and `bias` (C) are the head's. `held` (n) is 1 for samples that take part, else
    0.

    >>> features, y = torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0])  # mean 2, variance 2
    >>> weight, bias = torch.tensor([[0.0], [1.0]]), torch.zeros(2)
    >>> semantic_logits(weight, bias, features, y, held=torch.ones(2))  # 2 + 2.5 / 2 * 2
    (tensor([[0.0000, 4.5000],
            [0.0000, 0.0000]]), tensor([ True, False]))
    """
    member = one_hot(y, len(bias)) * held.unsqueeze(1)  # (n, C)
    count = member.sum(dim=0).unsqueeze(1)  # (C, 1)
    mu = member.T @ features / count.clamp(min=1)  # (C, F)
    away = (features - mu.index_select(0, y)) @ weight.T  # w_c (h - mu_y)               (n, C)
    gap = (away - away.gather(1, y.unsqueeze(1))).square()  # ((w_c - w_y)(h - mu_y))^2  (n, C)
    # (w_c - w_k)^T Sigma_k (w_c - w_k)                                                  (C, C)
    variance = member.T @ gap / (count - 1).clamp(min=1)
    return mu @ weight.T + bias + SPREAD / 2 * variance, count.squeeze(1) > 0


class StreamPrototypes(StatefulPart):
    """The number of stream samples of each class, (C), their mean feature mu, (C, F), and their
    scatter, (C, F, F): the sum over samples of (h - mu)(h - mu)^T.

    >>> prototypes = StreamPrototypes(2, 1, torch.device("cpu"))
    >>> for h in (1.0, 3.0):
    ...     prototypes.add(torch.tensor([[h]]), torch.tensor([0]))
    >>> prototypes.mean[0], prototypes.covariance[0]
    (tensor([2.]), tensor([[2.]]))
    """

    tensors: ClassVar[tuple[str, ...]] = ("count", "mean", "scatter")

    def __init__(self, rows: int, features: int, where: torch.device) -> None:
        self.count = torch.zeros(rows, device=where)
        self.mean = torch.zeros(rows, features, device=where)
        self.scatter = torch.zeros(rows, features, features, device=where)

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._held)

    @property
    def _held(self) -> list[Tensor]:
        return [self.count, self.mean, self.scatter]

    @property
    def covariance(self) -> Tensor:
        """Sigma of each class, (C, F, F); zeros for a class of fewer than two samples."""
        return self.scatter / (self.count - 1).clamp(min=1).view(-1, 1, 1)

    def add(self, features: Tensor, y: Tensor) -> None:
        """Adds a batch: features (n, F) of samples with rows y (n)."""
        member = one_hot(y, len(self.count)).float()  # (n, C)
        self.count += member.sum(dim=0)
        from_before = features - self.mean.index_select(0, y)  # h - mu  (n, F)
        self.mean += member.T @ from_before / self.count.clamp(min=1).unsqueeze(1)
        from_after = features - self.mean.index_select(0, y)  # (n, F)
        # the scatter gains the sum over the batch of (h - mu before)(h - mu after)^T
        of_class = member.T.unsqueeze(2) * from_before  # (C, n, F)
        self.scatter.baddbmm_(of_class.mT, from_after.expand(len(of_class), -1, -1))

    def logits(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Returns o_kc for each class k, (C, C). `weight` (C, F) and `bias` (C) are the head's."""
        gap = weight - weight.unsqueeze(1)  # w_c - w_k at [k, c]                  (C, C, F)
        variance = ((gap @ self.covariance) * gap).sum(dim=2)  #                      (C, C)
        return self.mean @ weight.T + bias + SPREAD / 2 * variance

    def grow(self, rows: int) -> None:
        more = rows - len(self.count)
        self.count, self.mean, self.scatter = (pad_rows(held, more) for held in self._held)

    def mark(self) -> dict[str, Tensor]:
        """Returns no tensors, because a step that is undone has added nothing yet: batches are
        added after the optimiser's update."""
        return {}


class FeatureReservoir(Reservoir):
    """A reservoir that also stores features of its samples, which `IL2A.on_task_end` computes.
    `known` is 0 for samples that arrived since then and have no features."""

    def forget(self, chosen: Tensor) -> None:
        """Deletes samples. It also clears the features of slots that are not `known`, which may
        still be those of a replaced sample."""
        super().forget(chosen)
        self.fields["features"].mul_(self.fields["known"].unsqueeze(1))


@method(
    "il2a",
    paper="Zhu et al., Class-Incremental Learning via Dual Augmentation",
    year=2021,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class IL2A(Replay):
    """Dual augmentation, with replay.

    Parameters
    ----------
    memory
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for each stream batch.
    temperature
        Temperature t of all softmaxes in training.
    semantic
        Weight of the cross-entropy of the old classes' logits o_k.
    prototypes
        Samples whose features give mean and covariance of a class: those in the `memory` at the
        last task's end, or all of the `stream`, which needs a covariance for each class (`forget`
        leaves it as it is).
    distillation
        Weight of the distance to the previous network's features.
    pairs
        Number of auxiliary classes, one for each pair of the task's classes. 20 classes have 190
        pairs.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.IL2A(memory=100, seed=0), stream)
    >>> last.accuracy > 85
    True
    """

    temperature: float = 0.1
    semantic: float = 10.0
    prototypes: Literal["memory", "stream"] = "memory"
    distillation: float = 0.1
    pairs: int = 190

    previous: PreviousNetwork = field(init=False)
    stream_prototypes: StreamPrototypes = field(init=False)  # only with prototypes="stream"
    traits: ClassVar[Traits] = Traits(
        unsupported={
            "distil": "logits are divided by a temperature, and half of them are of mixtures or "
            "stand for features drawn around prototypes (the mean features of old classes)"
        },
        exempt={
            "devices_agree": "mixtures are drawn by the device's own generator",
        },
    )
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "optimizer": "adam",
                "lr": 1e-3,
                "weight_decay": 2e-4,
                "temperature": 0.1,
                "semantic": 10.0,
                "distillation": 10.0,
                "pairs": 1225,
            },
            "Impression2805/IL2A 0f849f1: options of cifar/main.py and the optimiser of "
            "cifar/IL2A.py, without its schedule; pairs of the 50 classes of its first task",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "temperature", self.temperature > 0, "positive")
        require(self, "semantic", self.semantic >= 0, "zero or more")
        require(self, "distillation", self.distillation >= 0, "zero or more")
        require(self, "pairs", self.pairs >= 1, "at least 1")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().build(shape, dtype)
        self.previous = PreviousNetwork(self.trainer)  # copied at every boundary
        if self.prototypes == "stream":
            rows, features = self.model.head.weight.shape
            where = self.trainer.torch_device
            self.stream_prototypes = StreamPrototypes(rows, features, where)

    def make_store(self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> Store:
        if self.prototypes == "stream":
            return super().make_store(shape, dtype, rng)
        features = self.model.head.weight.shape[1]
        fields = {"features": torch.zeros(features), "known": torch.zeros(())}
        return FeatureReservoir(self.memory, shape, dtype, rng, fields)

    def extra_modules(self, features: int, rng: torch.Generator) -> dict[str, nn.Module]:
        auxiliary = build(lambda: nn.Linear(features, self.pairs), rng)
        for parameter in auxiliary.parameters():
            nn.init.zeros_(parameter)
        return {"auxiliary": auxiliary}

    def cost(self, batch: int) -> ImageCount:
        images = ((1 + MIXED) * batch + self.replay) * self.views_per_sample
        return ImageCount(trained=images, scored=images)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                        (b)
        replay = self.store.draw(self.replay, fallback=stream)  # X^buf           (r)
        views = self.views(torch.cat([x, replay.x]))
        of_stream, of_replay = self.views.cut(views, (len(y), self.replay))
        mixed = self.mixed(of_stream, y.repeat(self.views_per_sample))  # X^mix  (4b)

        images = torch.cat([of_stream, mixed.x, of_replay])
        h = self.model.features(images)  # (5b + r, F)
        h_previous = self.previous.features(images)  # features h'
        sizes = [len(of_stream), len(mixed.y), len(of_replay)]
        both_h, replay_h = torch.split(h, [sum(sizes[:2]), sizes[2]])
        logits = self.tempered(self.model.head, both_h)  # (5b, C)
        stream_out = self.trainer.output(logits[: sizes[0]], stream)
        replay_out = self.trainer.output(self.tempered(self.model.head, replay_h), replay)  # (r, C)

        stream_loss = self.augmented_loss(logits, both_h, stream_out, mixed)
        replay_loss = cross_entropy(replay_out, among=self.seen)
        semantic_loss = self.semantic_loss()
        weight = torch.cat([stream_out.weight, mixed.weight, replay_out.weight])
        drift = torch.linalg.vector_norm((h.float() - h_previous) * weight.unsqueeze(1))  # |h - h'|
        drift = drift * self.previous.known.any()  # 0 in the first task
        loss = stream_loss + replay_loss
        loss = loss + self.semantic * semantic_loss + self.distillation * drift

        if self.prototypes == "memory":
            self.keep(x, y, known=torch.zeros_like(stream.weight))
            self.descend(loss)
        else:
            self.keep(x, y)
            self.descend(loss)
            if self.trainer.last_repeat:
                self.stream_prototypes.add(both_h[: sizes[0]].detach().float(), stream_out.y)
        terms = {"stream": stream_loss, "replay": replay_loss, "drift": drift}
        return Step.of(loss, stream_out, replay_out, semantic=semantic_loss, **terms)

    def tempered(self, top: nn.Module, features: Tensor) -> Tensor:
        """Returns the logits of a linear layer divided by the temperature."""
        return self.model.on(top, features) / self.temperature

    def mixed(self, views: Tensor, y: Tensor) -> Samples:
        """Returns X^mix, (4b): mixtures of each view with random other ones. Their y is the number
        of the pair of classes."""
        rng, n = self.trainer.rngs["draws"], len(y)
        partner = (
            torch.rand(MIXED, n, generator=rng, device=self.trainer.torch_device)
            .argsort(dim=1)
            .flatten()
        )
        # the share l of the first image
        own = mixing_shares((MIXED * n,), rng).view(-1, *[1] * (views.ndim - 1))
        first = views.repeat(MIXED, *[1] * (views.ndim - 1))
        x = own * first + (1 - own) * views.index_select(0, partner)

        # position in the task: rows come in order of arrival, so new ones lie behind the old
        position = y - self.old.sum()
        a, b = position.repeat(MIXED), position.index_select(0, partner)
        number = pair_number(a, b)
        counts = (a != b) & (torch.minimum(a, b) >= 0) & (number < self.pairs)
        return Samples(x, number.clamp(0, self.pairs - 1), counts.float())

    def augmented_loss(
        self, logits: Tensor, features: Tensor, stream: Output, mixed: Samples
    ) -> Tensor:
        """Returns the mean cross-entropy of stream and mixtures, with a softmax over the classes
        seen and the auxiliary classes of the running task.

        The columns of auxiliary classes lie behind the head's."""
        auxiliary = self.tempered(self.model.get_submodule("auxiliary"), features)  # (5b, A)
        new = self.new.sum()
        active = torch.arange(self.pairs, device=self.trainer.torch_device) < new * (new - 1) // 2
        both_out = Output(
            torch.cat([logits, auxiliary], dim=1),  # (5b, C + A)
            torch.cat([stream.y, len(self.seen) + mixed.y]),
            torch.cat([stream.weight, mixed.weight]),
        )
        return cross_entropy(both_out, among=torch.cat([self.seen, active]))

    def semantic_loss(self) -> Tensor:
        """Returns the mean cross-entropy of the logits o_k of the old classes k that have a
        prototype."""
        head = self.model.head
        if self.prototypes == "stream":
            logits = self.stream_prototypes.logits(head.weight, head.bias)
            known = self.stream_prototypes.count > 0
        else:
            logits, known = self.logits_of_memory()
        classes = torch.arange(len(logits), device=self.trainer.torch_device)
        prototypes = Output(logits / self.temperature, classes, (known & self.old).float())
        return cross_entropy(prototypes, among=self.seen)

    def logits_of_memory(self) -> tuple[Tensor, Tensor]:
        """Returns o_kc (C, C) from the stored features, and a mask (C) of the classes that have
        some."""
        head, store, slots = self.model.head, self.store, slice(self.memory)
        # y is copied: the memory may store the batch before backward reads y
        y, fields = store.y[slots].clone(), store.fields
        features, held = fields["features"][slots], fields["known"][slots]
        return semantic_logits(head.weight, head.bias, features, y, held)

    def on_task_end(self) -> None:
        """Computes the features of all stored samples anew, if the prototypes are theirs. Sets the
        rows of the auxiliary classes to 0."""
        if self.prototypes == "memory":
            held = int(self.store.size)
            self.store.fields["features"][:held] = self.trainer.features_of(self.store.x[:held])
            self.store.fields["known"][:held] = 1
            self.trainer.count_images("task ends", ImageCount(trained=0, scored=held))
        for parameter in self.model.get_submodule("auxiliary").parameters():
            nn.init.zeros_(parameter)
            reset_rows(self.trainer.optimizer, parameter, slice(None))
