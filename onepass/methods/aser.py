"""Adversarial Shapley value experience replay: replay what the new samples endanger, keep what
helps to classify the memory.

Paper: Shim et al., "Online Class-Incremental Continual Learning with Adversarial Shapley Value",
AAAI 2021, in the variant ASER_mu. A candidate's worth for an evaluation sample j is its Shapley
value in a K-nearest-neighbours classifier on the network's features. With the candidates in order
of their distance to j, and e_m = 1 where the m-th has the label y_j,

    s_j(n) = e_n / n,   s_j(m) = s_j(m + 1) + (e_m - e_{m+1}) / K * min(K, m) / m

Retrieval, with candidates C and an evaluation set E, disjoint class-balanced draws from the memory:

    replay the highest of   E_{j in E} s_j(i) - E_{j in X^new} s_j(i)   over i in C
    L = E_{X^new u X^buf} -log p_y                             one mean over all

Update, with a class-balanced evaluation set E of the memory, joined by the stream samples whose
class has a share of the memory below a threshold drawn from U(0, 1 / classes), and as candidates
random other memory samples and X^new: those of the lowest sum_{j in E} s_j(i), as many as X^new
has, are not kept, so stream samples above replace memory samples below.

The n_s trap: the authors draw n_s samples of each class (9 on CIFAR10, 2 on CIFAR100) and replay
10. With few classes that pool is smaller than the 64 replayed here (18 in CIFAR10's first task), so
all of it is replayed and nothing is chosen. Here the pool has a size and is dealt out evenly over
the classes: n_s = `pool` / classes held, and `pool` is at least `replay`. Two disjoint draws take
2 `pool` samples; in a smaller memory each takes half of it. Only the candidates for replay are
never fewer than `replay` then, where the memory allows: below 2 `replay` samples, class balance is
all that is chosen. In the update the evaluation set must not outnumber the memory's candidates: a
stored sample's value is about the ratio of the two, a newcomer's at most about 1, and new classes
would never come in.

Decisions: until no slot is free it is `er` with one mean; a batch that fills the memory sends the
rest of it to the update. Features are of plain images, in evaluation mode, in the update after the
optimiser's step. Equals: the stored sample stays. With n < K candidates s_j(n) = e_n / K, which is
the exact value.
Departures from the authors' code: the pool, above; features are not computed twice; there is no
extra backward pass whose gradient is discarded (its forwards move BatchNorm's statistics);
adversarial retrieval begins with the first full memory, not one batch later; softmax and threshold
know the classes seen so far, not all of the data set; it has no augmentation.
Cost: batch + replay images, forward and backward, and 2 (2 `pool` + batch) forward, from the first
step on. Kept: raw sample and label.
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
    """Shapley values of candidates (columns) for evaluation samples (rows) in a vote of the k
    nearest; `match` says where the labels agree. Who is infinitely far and no match takes no part.

    >>> knn_shapley(torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[True, False, True]]), k=1)
    tensor([[ 0.8333, -0.1667,  0.3333]])
    """
    order = distance.argsort(dim=1, stable=True)  # from near to far           (j, n)
    ordered = F.pad(match.gather(1, order).float(), (0, 1))  # e_m, and e_{n+1} = 0   (j, n + 1)
    place = torch.arange(1, distance.shape[1] + 1, device=distance.device)
    # s(m) - s(m + 1)                                                            (j, n)
    steps = -ordered.diff(dim=1) * (place.clamp(max=k) / (k * place))
    # a cumulative sum from the far end; torch.cumsum has no deterministic form on a GPU
    values = steps @ (place.unsqueeze(1) >= place).float()
    return torch.empty_like(values).scatter_(1, order, values)


def distances(evaluation: Tensor, candidates: Tensor) -> Tensor:
    """Squared, less a constant for each evaluation sample: enough to sort by."""
    return torch.addmm(candidates.square().sum(dim=1), evaluation, candidates.T, alpha=-2)


def shapley(evaluation: Samples, candidates: Samples, k: int) -> Tensor:
    """Of features with their labels; candidates of weight 0 take no part."""
    absent = candidates.weight == 0
    far = distances(evaluation.x, candidates.x).masked_fill(absent, torch.inf)
    return knn_shapley(far, (evaluation.y.unsqueeze(1) == candidates.y) & ~absent, k)


def replaced(value: Tensor, stored: int) -> Tensor:
    """For each newcomer, behind `stored` others, which of these it replaces; `stored`, if none.

    As many as there are newcomers go, those of the lowest value; of equals the last.

    >>> replaced(torch.tensor([0.5, 0.1, 0.4, 0.2, 0.3, 0.0]), stored=3)
    tensor([3, 1, 3])
    """
    gone = value.argsort(descending=True, stable=True)[stored:].sort().values
    newcomer = torch.arange(stored, len(value), device=value.device)
    stays = (newcomer.unsqueeze(1) != gone).all(dim=1)
    vacant = gone.index_select(0, (stays.cumsum(0) - 1).clamp(min=0))
    return vacant.masked_fill(~stays, stored)


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
        How many samples are kept.
    replay
        How many of them are trained with each stream batch.
    pool
        Out of how many candidates they are chosen, and by how many samples these are valued.
    neighbours
        K, how many neighbours vote.

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
        """Each of two disjoint draws has the pool's size, or half of the memory."""
        return min(self.pool, self.memory // 2)

    @property
    def eligible(self) -> int:
        """Candidates for replay: no fewer than are replayed, if one is left to value them by."""
        return max(self.half, min(self.replay, self.memory - 1))

    def cost(self, batch: int) -> ImageCount:
        judges = min(self.half, self.memory - self.eligible)
        retrieving = ImageCount(trained=0, scored=self.eligible + judges + batch)
        return super().cost(batch) + retrieving + self.cost_of_letting_in(batch)

    def cost_of_letting_in(self, batch: int) -> ImageCount:
        return ImageCount(trained=0, scored=2 * self.half + batch)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                   (b)
        replay = self.retrieve(stream)  # X^buf                                   (r)
        (both_out,) = self.forward(stream.then(replay))  # logits             (b + r, C)
        loss = cross_entropy(both_out, among=self.seen)  # one mean over both
        self.descend(loss)
        if self.trainer.lets_in:
            self.update(stream)
        return Step.of(loss, *self.trainer.apart(both_out, stream, replay))

    def retrieve(self, stream: Samples) -> Samples:
        """Those of the highest adversarial Shapley value; random ones until the memory is full."""
        slots = self.store.round_robin_slots(
            min(self.eligible + self.half, self.memory)
        )  # C, then E
        candidates, evaluation, new = self.embedded(slots, self.eligible, stream)
        helps = shapley(evaluation, candidates, self.neighbours).mean(dim=0)  # E_{j in E}    (C)
        intrudes = shapley(new, candidates, self.neighbours).mean(dim=0)  # E_{j in X^new}    (C)
        count = min(self.replay, len(helps))
        best = slots.index_select(0, (helps - intrudes).topk(count).indices)

        place = torch.arange(self.replay, device=self.trainer.torch_device)
        random, genuine = self.store.draw_slots(self.replay)
        full = self.store.size >= self.memory
        slots = torch.where(full, best.index_select(0, place % count), random)
        return self.store.samples_at(
            slots, torch.where(full, place < count, genuine), fallback=stream
        )

    def update(self, stream: Samples) -> None:
        """Free slots are filled; who finds none may replace a memory sample of lower value."""
        waits = (
            self.store.size + torch.arange(len(stream.y), device=self.trainer.torch_device)
            >= self.memory
        )
        self.store.add(stream.x, stream.y)
        judges = self.store.round_robin_slots(
            self.half
        )  # E                                     (h)
        slots = self.store.other_slots(self.half, judges)  # the memory's candidates       (h)
        evaluation, stored, new = self.embedded(torch.cat([judges, slots]), self.half, stream)
        candidates = stored.then(new._replace(weight=waits.float()))
        values = shapley(evaluation.then(new), candidates, self.neighbours)  #    (h + b, h + b)
        # stream samples judge only if they find no slot and their class is rare in the memory
        heard = F.pad((waits & self.is_rare(stream.y)).float(), (self.half, 0), value=1.0)
        value = (heard @ values).masked_fill(candidates.weight == 0, -torch.inf)  #   (h + b)
        loser = replaced(value, stored=self.half)  # whom each newcomer replaces      (b)
        places = F.pad(slots, (0, 1), value=self.memory).index_select(0, loser)
        self.store.write(places, stream.x, stream.y)

    def is_rare(self, y: Tensor) -> Tensor:
        """Whether a class's share of the full memory is below U(0, 1 / classes)."""
        share = (y.unsqueeze(1) == self.store.y[: self.memory]).sum(dim=1) / self.memory
        uniform = torch.rand(
            1, generator=self.trainer.rngs["draws"], device=self.trainer.torch_device
        )
        return share < uniform / self.seen.sum()

    def embedded(self, slots: Tensor, first: int, stream: Samples) -> list[Samples]:
        """Features in the place of samples: those in the first so many slots, in the others, and
        of the stream batch, from one forward."""
        x = torch.cat([self.store.x.index_select(0, slots), stream.x])
        y = torch.cat([self.store.y.index_select(0, slots), stream.y])
        whole = Samples.of(self.trainer.features_of(x), y)
        return whole.cut(first, len(slots) - first, len(stream.y))
