"""GSA as its published script computes it, which is not what the paper's equations say.

Paper: Guo, Liu, Zhao, CVPR 2023; script: the authors' repository gydpku/GSA (CIFAR100 only). With
cur up to 22 samples of the current task from the memory, X^mix made of int(64 |O| / |seen|) old
samples and the first int(64 |N| / |seen|) of [X^new; cur], and every image also as its mirror
image:

    L = 2 E_{X^mix} [ -w_y log softmax_{seen}(o)_y ] + E_{[X^new; cur]} -log softmax_N(o)_y
    w_c = 2 / (1 + exp(1 - r_c)),  r_c = |S-(c)| / S+(c) over X^mix of all tasks

so there is no T2, no T3 and no v; w grows with the inverse of the ratio in the paper (balance 1,
range 0.54 … 2) and is 1 during the first five batches of a task. The images of [X^new; cur] are
augmented twice, those of X^mix once, in forwards of their own. The head is never registered with
the optimiser after the first task, hence `head="frozen"`; X^mix is not trained while the memory is
empty.
Departures from the script: the softmax runs over the classes seen so far, not over all classes of
the task; none of its four extra forwards whose results it discards (they move BatchNorm's
statistics); an exact reservoir; log-softmax instead of the logarithm of a softmax; a class without
a rate has w = 1; where the batches are not full (all of the first task, the first steps of others)
their samples are repeated at weight 0, which BatchNorm sees.
Cost: 2 (batch + cur + mix) images, forward and backward. Kept: raw sample and label.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from onepass.balance import Balance
from onepass.learner import Learner
from onepass.losses import cross_entropy, mean, sample_cross_entropy
from onepass.memory import Pools, Reservoir, line, shares
from onepass.parts import Images, Step
from onepass.registry import method


def released_weight(positive: Tensor, negative: Tensor) -> Tensor:
    """w = 2 / (1 + exp(1 - |S-| / S+)); 1 where a class has had no gradient.

    >>> ratio = torch.tensor([0.0, 0.5, 1.0, 2.0, 5.0])
    >>> released_weight(torch.ones(5), -ratio)
    tensor([0.5379, 0.7551, 1.0000, 1.4621, 1.9640])
    """
    w = 2 / (1 + torch.exp(1 - negative.abs() / positive))
    return torch.where((positive == 0) & (negative == 0), 1.0, w)


@method(
    "gsa-released",
    paper="Guo et al., the published script of the CVPR paper",
    year=2023,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class GSAReleased(Learner):
    """GSA by the published script.

    Parameters
    ----------
    memory
        How many samples are kept.
    mix, current
        The size of X^mix, and how many samples of the current classes are replayed.
    warm_up
        For how many batches of each task all w are 1.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.GSAReleased(memory=100, seed=0), stream)
    >>> last.accuracy > 60
    True
    """

    head: Literal["trained", "frozen"] = "frozen"
    mirror: bool = True
    memory: int = 1000
    mix: int = 64
    current: int = 22
    warm_up: int = 5

    store: Reservoir = field(init=False, repr=False)
    balance: Balance = field(init=False, repr=False)
    keeps: ClassVar[tuple[str, ...]] = ("x", "y")
    parts: ClassVar[tuple[str, ...]] = ("store", "balance")

    def check_settings(self) -> None:
        super().check_settings()
        self.require("memory", self.memory >= 0, "zero or more")
        self.require("mix", self.mix >= 2, "at least 2")
        self.require("current", self.current >= 1, "at least 1")
        self.require("warm_up", self.warm_up >= 0, "zero or more")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.store = Reservoir(self.memory, shape, dtype, self.generators["draws"])
        self.balance = Balance(len(self.seen), self.where)

    def cost(self, batch: int) -> Images:
        return Images(trained=(batch + self.current + self.mix) * self.copies)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = self.stream(x, y)
        new, old = self.new, self.old
        lines = Pools(self.store, stream, (None, new), drawn=(self.mix, self.current))
        n_old = self.mix * old.sum() // self.seen.sum()
        n_new = self.mix * new.sum() // self.seen.sum()
        size = len(y) + self.current
        places = line(1, 0, size, self.where).then(shares(n_old, n_new, self.mix))
        current, batch = lines.take(places).cut(size, self.mix)
        batch = batch._replace(weight=batch.weight * (self.store.size > 0))

        twice = self.views.augmented(self.views(current.x))
        first = self.output(self.model.train_forward(twice), current)
        mixed = self.forward(batch)
        in_task = cross_entropy(*first, among=new)
        self.balance.update((mixed,), self.seen)
        each = sample_cross_entropy(mixed.logits, mixed.y, among=self.seen)
        replayed = mean(self.weight()[mixed.y] * each, mixed.weight)
        loss = 2 * replayed + in_task

        self.descend(loss, meanwhile=lambda: self.store.add(x, y))
        terms = {"mix": replayed.detach(), "new": in_task.detach()}
        return Step(loss.detach(), terms, (first.detach(), mixed.detach()))

    def weight(self) -> Tensor:
        w = released_weight(self.balance.positive, self.balance.negative).float()
        return torch.where(self.balance.updates > self.warm_up, w, 1.0)
