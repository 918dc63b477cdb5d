"""Separated softmax: new and old classes never compete in a softmax, and each earlier task is
distilled by itself from the previous network.

Paper: Ahn et al., "SS-IL: Separated Softmax for Incremental Learning", ICCV 2021. With N the
classes that are new since the last boundary, O the older ones, L_r those of an earlier task r,
X^new the stream batch, X^buf a draw from the memory among O, o the network's logits and o' those of
the network as it was at that boundary, of the same views:

    L = 1/(b + r) [ sum_{X^new} -log softmax_N(o)_y + sum_{X^buf} -log softmax_O(o)_y ]
      + strength sum_r T^2 E_{X^new u X^buf} KL(softmax_{L_r}(o'/T) || softmax_{L_r}(o/T))

Decisions:

- X^new and X^buf have one joint forward, as in the authors' code.
- One mean over both (`loss="mean"`) is the paper's and its code's, where a stream sample weighs as
  much as a replayed one: 10 to 64 here. `loss="sum"` has two means, 1 to 1, as the online port of
  AML's repository has it (which distils replayed samples only, without T^2). Digits, M=100, five
  seeds: 81.6 ± 3.0 with one mean, 80.7 ± 2.9 with two.
- A stream sample of an old class competes with the old ones, as replayed ones do.
- In the first task, and while the memory holds no old class, L is cross-entropy on the stream.

Departures from the paper and the authors' code: one pass over the stream, of which N and the tasks
are known as far as their classes have been seen. The authors' learning rate falls as 1 / t over the
tasks t, and their memory has as many samples of each old class; here the rate stays, and the memory
is a reservoir of the whole stream, from which old classes are drawn. `strength` is ours, and 1
there: the distillation sums over tasks, so that with many of them it outweighs the rest. How the
GSA authors ran the method is known only as far as batch, replay and augmentation.
Cost: batch + replay images, forward and backward, and once more forward through the previous
network. Kept: raw sample and label, and the previous network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from onepass.base.expect import expect_rows
from onepass.base.parts import ImageCount, Output, Samples, StatefulPart, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import mean, sample_cross_entropy_against
from onepass.learning.network_copies import PreviousNetwork
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.nets.optimisers import pad_rows


def within_groups(logits: Tensor, group: Tensor) -> Tensor:
    """The logarithm of a softmax within each group of classes, (n, C). `group` (C) names each
    class's group by one of its rows.

    >>> logits, group = torch.tensor([[3.0, 3.0, 5.0]]), torch.tensor([0, 0, 2])
    >>> within_groups(logits, group).exp()
    tensor([[0.5000, 0.5000, 1.0000]])
    """
    place = group.expand_as(logits)
    nothing = torch.full_like(logits, -torch.inf)
    highest = nothing.scatter_reduce(1, place, logits.detach(), "amax").gather(1, place)
    shifted = logits - highest  # at most 0, and 0 somewhere in each group       (n, C)
    together = (group.unsqueeze(1) == group).to(logits.dtype)  # (C, C)
    return shifted - (shifted.exp() @ together).log()


def task_distillation(out: Output, taught: Tensor, group: Tensor, temperature: float) -> Tensor:
    """T^2 times the mean of the sum over groups of KL(softmax(taught / T) || softmax(o / T)), each
    softmax within its group; a class that is a group by itself adds nothing."""
    own = within_groups(out.logits / temperature, group)
    theirs = within_groups(taught / temperature, group)
    divergence = (theirs.exp() * (theirs - own)).sum(dim=1)  # (n)
    return temperature**2 * mean(divergence, out.weight)


class TaskOfClass(StatefulPart):
    """The task of each class, `first` (C), named by the first row that it brought."""

    tensors: ClassVar[tuple[str, ...]] = ("first",)

    def __init__(self, rows: int, where: torch.device) -> None:
        self.first = torch.zeros(rows, dtype=torch.int64, device=where)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        self.first.copy_(torch.where(new, new.int().argmax(), self.first))

    def grow(self, rows: int) -> None:
        self.first = pad_rows(self.first, rows - len(self.first))

    def expect(self, saved: dict[str, Any], classes: int, name: str) -> None:
        super().expect(saved, classes, name)
        expect_rows(saved["first"], classes, f"{name}.first")

    def groups(self, among: Tensor) -> Tensor:
        """The same for the classes `among` (a mask); any other is by itself."""
        return torch.where(among, self.first, torch.arange(len(among), device=among.device))


@method(
    "ssil",
    paper="Ahn et al., SS-IL: Separated Softmax for Incremental Learning",
    year=2021,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class SSIL(Replay):
    """Separated softmax, and distillation task by task.

    Parameters
    ----------
    memory
        How many samples are kept.
    replay
        How many of them, of old classes, are trained with each stream batch.
    loss
        One `mean` over all samples, or the `sum` of the means of new and of old ones.
    strength
        How much the previous network's opinion counts.
    temperature
        T, by which both networks' logits are softened.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.SSIL(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    loss: Literal["mean", "sum"] = "mean"
    strength: float = 1.0
    temperature: float = 2.0

    previous: PreviousNetwork = field(init=False)
    tasks: TaskOfClass = field(init=False)
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "optimizer": "nesterov",
                "lr": 0.1,
                "weight_decay": 1e-4,
                "replay": 3,
                "loss": "mean",
                "strength": 1.0,
                "temperature": 2.0,
            },
            "the authors' repository hongjoon0805/SS-IL-Official (ImageNet): arguments.py and "
            "trainer/ssil.py, without its schedule; its momentum of 0.9 is not Nesterov's, and its "
            "batches have 128 and 32, 10 and 3 here",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "strength", self.strength >= 0, "zero or more")
        require(self, "temperature", self.temperature > 0, "positive")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().build(shape, dtype)
        self.previous = PreviousNetwork(self.trainer)  # taken anew at every boundary
        self.tasks = TaskOfClass(len(self.seen), self.trainer.torch_device)

    def cost(self, batch: int) -> ImageCount:
        images = (batch + self.replay) * self.views_per_sample
        return ImageCount(trained=images, scored=images)

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                            (b)
        replay = self.store.draw(self.replay, fallback=stream, among=self.old)  # X^buf    (r)
        (both_out,) = self.forward(stream.then(replay))  # o                          (b + r, C)
        taught = self.previous(both_out.views)  # o'                                  (b + r, C)

        of_new = self.new[both_out.y]  # whether a sample is of N or of O             (b + r)
        rivals = torch.where(of_new.unsqueeze(1), self.new, self.old)  #              (b + r, C)
        each = sample_cross_entropy_against(both_out, rivals.log())
        if self.loss == "mean":
            apart_loss = mean(each, both_out.weight)
        else:
            sides = (of_new, ~of_new)
            new_loss, old_loss = (mean(each, both_out.weight * side) for side in sides)
            apart_loss = new_loss + old_loss
        groups = self.tasks.groups(self.previous.known)
        task_loss = task_distillation(both_out, taught, groups, self.temperature)
        loss = apart_loss + self.strength * task_loss

        self.keep(x, y)
        self.descend(loss)
        return Step.of(
            loss,
            *self.trainer.split_output(both_out, stream, replay),
            apart=apart_loss,
            tasks=task_loss,
        )
