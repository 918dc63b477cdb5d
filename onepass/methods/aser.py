"""Adversarial Shapley value experience replay (ASER): replay the stored samples that are close to
new samples of other classes, and keep those that help to classify the memory.

Paper: Shim et al., "Online Class-Incremental Continual Learning with Adversarial Shapley Value",
AAAI 2021, variant ASER_mu. The value of a candidate for an evaluation sample j is its Shapley value
in a K-nearest-neighbours classifier on the network's features. Candidates are ordered by their
distance to j. e_m = 1 if the m-th has the label y_j, else 0:

    s_j(n) = e_n / n,   s_j(m) = s_j(m + 1) + (e_m - e_{m+1}) / K * min(K, m) / m

Retrieval draws candidates C and an evaluation set E from the memory, disjoint and class-balanced:

    replay the highest of   E_{j in E} s_j(i) - E_{j in X^new} s_j(i)   over i in C
    L = E_{X^new u X^buf} -log p_y                             one mean over all

Update: E is again a class-balanced draw from the memory. A stream sample joins E if its class has a
share of the memory below a threshold, which is drawn from U(0, 1 / classes seen) once a batch. The
candidates are other random samples of the memory and X^new. The |X^new| candidates with the lowest
sum_{j in E} s_j(i) are dropped: each stream sample above them replaces a stored sample among them.

The n_s trap: the authors draw n_s samples of each class (9 on CIFAR10, 2 on CIFAR100) and replay
10. With few classes that pool is smaller than the 64 replayed here (18 in CIFAR10's first task).
All of it would be replayed and nothing chosen. Here the pool has a fixed size, dealt evenly over
the classes: n_s = `pool` / stored classes, and `pool` is at least `replay`. The two disjoint draws
take 2 `pool` samples. In a smaller memory each takes half of it. There are still at least `replay`
candidates for replay if the memory has more samples than that. In a memory of 2 `replay` samples or
fewer, every candidate is replayed, so the draw only balances the classes. In the update E must not
outnumber the stored candidates, or new classes would never enter. A stored sample's value is about
|E| / stored candidates, a newcomer's at most about 1.

Decisions: while a slot is free the method is `er` with `loss="mean"`. If a batch fills the memory,
its remaining samples go through the update. Features are computed from plain images in evaluation
mode; in the update, after the optimiser's step. In a tie the stored sample stays. With n < K
candidates s_j(n) = e_n / K, which is the exact value.
Departures from the authors' code: the pool, see above. Features are not computed twice. There is no
extra backward pass with a discarded gradient (its forward passes move BatchNorm's statistics).
Adversarial retrieval begins with the first full memory, not one batch later. Softmax and threshold
use the classes seen so far, not all of the dataset. The authors use no augmentation.
Cost: batch + replay images, forward and backward, and 2 (2 `pool` + batch) forward, also before the
memory is full. Kept: raw samples and labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.parts import ImageCount, Samples, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import cross_entropy
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.learning.traits import Traits
from onepass.memory import RoundRobin


def knn_shapley(distance: Tensor, match: Tensor, k: int) -> Tensor:
    """Returns the Shapley values of candidates (columns) for evaluation samples (rows) in a vote of
    the k nearest, (j, n).

    `match` (j, n) is true where the two labels agree. A candidate takes no part if its distance is
    infinite and it matches nothing.

    >>> knn_shapley(torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[True, False, True]]), k=1)
    tensor([[ 0.8333, -0.1667,  0.3333]])
    """
    order = distance.argsort(dim=1, stable=True)  # nearest first                        (j, n)
    ordered = F.pad(match.gather(1, order).float(), (0, 1))  # e_m, and e_{n+1} = 0  (j, n + 1)
    rank = torch.arange(1, distance.shape[1] + 1, device=distance.device)  # rank m
    # differences of the header's equation: s(m) - s(m + 1)                              (j, n)
    steps = -ordered.diff(dim=1) * (rank.clamp(max=k) / (k * rank))
    # cumulative sum from the far end: torch.cumsum is not deterministic on a GPU
    values = steps @ (rank.unsqueeze(1) >= rank).float()
    return torch.empty_like(values).scatter_(1, order, values)


def distances(evaluation: Tensor, candidates: Tensor) -> Tensor:
    """Returns squared distances (j, n) minus the squared length of each evaluation sample. Within a
    row this does not change the order."""
    return torch.addmm(candidates.square().sum(dim=1), evaluation, candidates.T, alpha=-2)


def shapley(evaluation: Samples, candidates: Samples, k: int) -> Tensor:
    """Returns Shapley values (j, n). Both arguments have features as x. Candidates of weight 0 take
    no part."""
    absent = candidates.weight == 0
    far = distances(evaluation.x, candidates.x).masked_fill(absent, torch.inf)
    return knn_shapley(far, (evaluation.y.unsqueeze(1) == candidates.y) & ~absent, k)


def replacements(value: Tensor, stored: int) -> Tensor:
    """Returns, for each newcomer, the index of the stored sample that it replaces. A newcomer that
    replaces none gets the index `stored`.

    `value` has the stored samples first, then the newcomers. As many samples as there are newcomers
    are dropped, those of the lowest value. In a tie the last ones are dropped.

    >>> replacements(torch.tensor([0.5, 0.1, 0.4, 0.2, 0.3, 0.0]), stored=3)
    tensor([3, 1, 3])
    """
    dropped = value.argsort(descending=True, stable=True)[stored:].sort().values
    newcomer = torch.arange(stored, len(value), device=value.device)
    enters = (newcomer.unsqueeze(1) != dropped).all(dim=1)
    # the first entering newcomer takes the first dropped index, and so on: stored ones come first
    vacant = dropped.index_select(0, (enters.cumsum(0) - 1).clamp(min=0))
    return vacant.masked_fill(~enters, stored)


@method(
    "aser",
    paper="Shim et al., Online Class-Incremental Continual Learning with Adversarial Shapley Value",
    year=2021,
)
@dataclass(kw_only=True, eq=False)
class ASER(Replay):
    """Adversarial Shapley value experience replay.

    Parameters
    ----------
    memory
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for each stream batch.
    pool
        Number of candidates for replay, and of evaluation samples that value them; half of a memory
        that is smaller than two pools.
    neighbours
        Number K of nearest neighbours that vote.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.ASER(memory=100, seed=0), stream)
    >>> last.accuracy > 65
    True
    """

    pool: int = 200
    neighbours: int = 3

    store: RoundRobin = field(init=False)
    traits: ClassVar[Traits] = Traits(least_memory=2)
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "optimizer": "sgd",
                "lr": 0.1,
                "weight_decay": 0.0,
                "augment": "none",
                "replay": 10,
                "pool": 200,
                "neighbours": 3,
            },
            "the authors' configuration for CIFAR100 (RaptorMai/online-continual-learning, "
            "config_CVPR/agent/aser): n_s = 2 of each of 100 classes",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "pool", self.pool >= self.replay, f"at least {self.replay} (replay)")
        require(self, "neighbours", self.neighbours >= 1, "at least 1")

    def make_store(
        self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator
    ) -> RoundRobin:
        return RoundRobin(self.memory, shape, dtype, rng)

    @property
    def half(self) -> int:
        """The size of each of two disjoint draws: `pool`, or half of a smaller memory."""
        return min(self.pool, self.memory // 2)

    @property
    def eligible(self) -> int:
        """The number of candidates for replay: `half`, or `replay` if that is more. At least one
        stored sample remains for the evaluation set."""
        return max(self.half, min(self.replay, self.memory - 1))

    def cost(self, batch: int) -> ImageCount:
        evaluation = min(self.half, self.memory - self.eligible)
        retrieving = ImageCount(trained=0, scored=self.eligible + evaluation + batch)
        return super().cost(batch) + retrieving + self.cost_of_storing(batch)

    def cost_of_storing(self, batch: int) -> ImageCount:
        return ImageCount(trained=0, scored=2 * self.half + batch)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                (b)
        replay = self.retrieve(stream)  # X^buf                           (r)
        (both_out,) = self.forward(stream.then(replay))  # logits  (b + r, C)
        loss = cross_entropy(both_out, among=self.seen)  # one mean over both
        self.descend(loss)
        if self.trainer.last_repeat:
            self.update(stream)
        return Step.of(loss, *self.trainer.split_output(both_out, stream, replay))

    def retrieve(self, stream: Samples) -> Samples:
        """Returns X^buf (r): the candidates of the highest adversarial value. Until the memory is
        full it returns random stored samples."""
        total = min(self.eligible + self.half, self.memory)
        slots = self.store.round_robin_slots(total)  # C, then E
        candidates, evaluation, new = self.embed(slots, self.eligible, stream)
        helps = shapley(evaluation, candidates, self.neighbours).mean(dim=0)  # mean over E  (C)
        intrudes = shapley(new, candidates, self.neighbours).mean(dim=0)  # over X^new  (C)
        count = min(self.replay, len(helps))
        best = slots.index_select(0, (helps - intrudes).topk(count).indices)

        # both choices are computed, because a step captured as a CUDA graph cannot branch
        index = torch.arange(self.replay, device=self.trainer.torch_device)
        random, genuine = self.store.draw_slots(self.replay)
        full = self.store.size >= self.memory
        slots = torch.where(full, best.index_select(0, index % count), random)
        genuine = torch.where(full, index < count, genuine)
        return self.store.samples_at(slots, genuine, fallback=stream)

    def update(self, stream: Samples) -> None:
        """Fills free slots, then lets other stream samples replace stored ones of lower value."""
        number = torch.arange(len(stream.y), device=self.trainer.torch_device)
        waits = self.store.size + number >= self.memory  # no slot is free for it          (b)
        self.store.add(stream.x, stream.y)
        judges = self.store.round_robin_slots(self.half)  # set E                          (h)
        slots = self.store.other_slots(self.half, judges)  # the memory's candidates       (h)
        evaluation, stored, new = self.embed(torch.cat([judges, slots]), self.half, stream)
        candidates = stored.then(new._replace(weight=waits.float()))
        values = shapley(evaluation.then(new), candidates, self.neighbours)  #  (h + b, h + b)
        # a stream sample belongs to E only if it found no slot and its class is rare in the memory
        in_e = F.pad((waits & self.is_rare(stream.y)).float(), (self.half, 0), value=1.0)
        value = (in_e @ values).masked_fill(candidates.weight == 0, -torch.inf)  #     (h + b)
        victim = replacements(value, stored=self.half)  #                                  (b)
        # the scratch row takes the newcomers that replace nothing
        taken = F.pad(slots, (0, 1), value=self.memory).index_select(0, victim)
        self.store.write(taken, stream.x, stream.y)

    def is_rare(self, y: Tensor) -> Tensor:
        """Returns a mask (b) of the labels whose class has a share of the memory below a threshold.
        The threshold is drawn from U(0, 1 / classes seen)."""
        share = (y.unsqueeze(1) == self.store.y[: self.memory]).sum(dim=1) / self.memory
        uniform = torch.rand(
            1, generator=self.trainer.rngs["draws"], device=self.trainer.torch_device
        )
        return share < uniform / self.seen.sum()

    def embed(self, slots: Tensor, first: int, stream: Samples) -> list[Samples]:
        """Returns three batches with features in place of x, from one forward pass: the samples in
        the first `first` slots, those in the other slots, and the stream batch."""
        x = torch.cat([self.store.x.index_select(0, slots), stream.x])
        y = torch.cat([self.store.y.index_select(0, slots), stream.y])
        featured = Samples.of(self.trainer.features_of(x), y)
        return featured.cut(first, len(slots) - first, len(stream.y))
