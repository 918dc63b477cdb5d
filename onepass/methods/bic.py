"""Bias correction: replay with distillation, and when a task has ended two numbers that put the
logits of its classes right, fitted on samples that were never trained on.

Paper: Wu et al., "Large Scale Incremental Learning", CVPR 2019. With N the classes that are new
since the last boundary, O the older ones, X the stream batch and a draw from the memory (current
classes included), o the network's logits and o' those of the network as it was at that boundary, of
the same views, corrected as at that boundary:

    lambda = |O| / |O u N|
    L = lambda E_X KL(softmax_O(o'/T) || softmax_O(o/T)) + (1 - lambda) E_X -log softmax_{seen}(o)_y

At a task's end, from the second on, the network stays as it is and a, b are fitted on the samples V
that are held out, with which the logits become q:

    q_c = a o_c + b  for c in N,   o_c  for c in O
    min_{a, b}  E_V -log softmax_{seen}(q)_y + decay/2 b^2 + decay/2 (a - 1)^2

Decisions: how the GSA authors made the method online is not known, so this is ours.

- `validation` of the memory's places, a tenth as in the paper, are for held-out samples, as many of
  each class. One stream sample of so many, drawn by lot, is a candidate; if its class has a place
  left it goes there and is neither trained nor replayed, ever. When classes arrive the others give
  up places; where there are more classes than places nothing is held out, and a = 1, b = 0.
- While a task runs its logits are not corrected, since nothing has been fitted for it; nor are
  those of earlier tasks: what was fitted for them is discarded at the boundary, as in the paper and
  the authors' code, and lives on in the distillation, which takes o' as it was corrected then.
- KL in the place of the paper's cross-entropy with o': it differs by a number that does not depend
  on the network, and is 0 where nothing has to be learned. As in the paper there is no T^2.
- One joint forward and one mean over stream and replay.
- V is small here, often one sample of each class, and two numbers can fit it without end where it
  is separable; stopping after so many steps, as the references do, is a bound of its own kind. Here
  a and b are the minimum, found by Newton's method, and a is held to 1 as b is to 0 (`decay`, 0.1
  for b in the authors' code, which has no term for a). Digits, M=100, five seeds: 91.0 ± 1.2 with
  0.1, 90.3 ± 1.2 with 0.01, 92.1 ± 1.1 with 1; 92.8 ± 1.4 with nothing held out and no correction:
  ten samples held out cost more than they bring there.

Departures from the authors' code and the paper: those above; one pass over the stream, and a
reservoir instead of herded samples.
Cost: batch + replay images, forward and backward, and once more forward through the previous
network; at each task's end from the second on the held-out samples, forward. Kept: raw sample and
label, and the previous network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.base.parts import ImageCount, Samples, StatefulPart, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import cross_entropy, distillation
from onepass.learning.network_copies import PreviousNetwork
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.learning.traits import Traits
from onepass.memory import FilteredReservoir, HeldOutSet
from onepass.nets import Classifier

NEWTON_STEPS = 50
HALVINGS = 30


def fitted(logits: Tensor, y: Tensor, new: Tensor, decay: float) -> tuple[float, float]:
    """a and b: the minimum over both of the mean cross-entropy of logits (n, C) of which the `new`
    ones (a mask) become a o + b, plus decay/2 (b^2 + (a - 1)^2).

    It is convex, so that Newton's steps, each halved until it goes down, find it.

    >>> new, y = torch.tensor([False, True]), torch.tensor([0, 0, 1, 1])
    >>> logits = torch.tensor([[0.0, 2.0], [0.0, 4.0], [0.0, 2.0], [0.0, 4.0]])
    >>> a, b = fitted(logits, y, new, 1e-9)
    >>> abs(a) < 1e-6, abs(b) < 1e-6  # nothing tells the two classes apart
    (True, True)
    """
    logits = logits.double()
    # d q / d a and d q / d b                                                    (n, C, 2)
    slope = torch.stack([logits * new, new.double().expand_as(logits)], dim=2)
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def loss_at(at: Tensor) -> Tensor:
        loss = F.cross_entropy(logits + slope @ (at - start), y)
        return loss + decay / 2 * (at - start).square().sum()

    at, here = start, loss_at(start)
    for _ in range(NEWTON_STEPS):
        p = (logits + slope @ (at - start)).softmax(dim=1).unsqueeze(2)
        expected = (p * slope).sum(dim=1)  # (n, 2)
        gradient = (expected - slope[torch.arange(len(y)), y]).mean(dim=0) + decay * (at - start)
        spread = slope - expected.unsqueeze(1)
        curvature = (spread.mT @ (p * spread)).mean(dim=0) + decay * torch.eye(2)
        towards = torch.linalg.solve(curvature, gradient)
        for halving in range(HALVINGS):
            there = loss_at(at - towards / 2**halving)
            if there < here:
                at, here = at - towards / 2**halving, there
                break
        else:  # nothing is lower: this is the minimum
            break
    a, b = at.tolist()
    return a, b


class Correction(StatefulPart):
    """What the logits are multiplied by and what is then added, (C) each: those of the running
    task's end, and those with which the previous network was left."""

    tensors: ClassVar[tuple[str, ...]] = ("factor", "shift", "taught_factor", "taught_shift")

    def __init__(self, rows: int, where: torch.device) -> None:
        self.factor, self.taught_factor = torch.ones(2, rows, device=where)
        self.shift, self.taught_shift = torch.zeros(2, rows, device=where)

    def new_task(self) -> None:
        self.taught_factor.copy_(self.factor)
        self.taught_shift.copy_(self.shift)
        self.factor.fill_(1)
        self.shift.zero_()

    def set(self, among: Tensor, a: float, b: float) -> None:
        """a and b for the classes `among` (a mask), and nothing for others."""
        self.factor.fill_(1).masked_fill_(among, a)
        self.shift.zero_().masked_fill_(among, b)

    def grow(self, rows: int) -> None:
        for name in self.tensors:
            held, born = getattr(self, name), float("factor" in name)
            setattr(self, name, F.pad(held, (0, rows - len(held)), value=born))


class Corrected(nn.Module):
    """A network whose logits are corrected."""

    factor: Tensor
    shift: Tensor

    def __init__(self, net: Classifier, correction: Correction) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("factor", correction.factor.clone())
        self.register_buffer("shift", correction.shift.clone())

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return self.factor * logits + self.shift


@method(
    "bic",
    paper="Wu et al., Large Scale Incremental Learning (BiC)",
    year=2019,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class BiC(Replay):
    """Replay with distillation, and a correction of the newest logits.

    Parameters
    ----------
    memory
        How many samples are kept, held-out ones included.
    replay
        How many of them are trained with each stream batch.
    validation
        Which share of the kept samples is held out; 0: there is no correction.
    decay
        How strongly the correction is held to none.
    temperature
        T, by which both networks' logits are softened.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.BiC(memory=100, seed=0), stream)
    >>> last.accuracy > 70
    True
    """

    validation: float = 0.1
    decay: float = 0.1
    temperature: float = 2.0

    store: FilteredReservoir = field(init=False)
    held_out: HeldOutSet = field(init=False)
    previous: PreviousNetwork = field(init=False)
    correction: Correction = field(init=False)
    _held: Tensor = field(init=False)
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "optimizer": "nesterov",
                "lr": 0.1,
                "weight_decay": 2e-4,
                "validation": 0.1,
                "decay": 0.1,
                "temperature": 2.0,
            },
            "the authors' repository wuyuebupt/LargeScaleIncrementalLearning (ImageNet, batches of "
            "256), with the weight decay that FACIL and mammoth have for CIFAR100; its momentum of "
            "0.9 is not Nesterov's, and its schedule is left out",
        )
    }
    traits: ClassVar[Traits] = Traits(
        unsupported={"norms": "logits are corrected as they are by the running statistics"},
        exempt={
            "devices_agree": "what is held out is drawn by the device's own generator",
        },
    )

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "validation", 0 <= self.validation < 1, "at least 0 and less than 1")
        require(self, "decay", self.decay > 0, "positive")
        require(self, "temperature", self.temperature > 0, "positive")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().build(shape, dtype)
        places = self.memory - self.store.capacity
        self.held_out = HeldOutSet(places, shape, dtype, self.trainer.rngs["draws"])
        self.previous = PreviousNetwork(self.trainer)  # taken anew at every boundary
        self.correction = Correction(len(self.seen), self.trainer.torch_device)

    def make_store(
        self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator
    ) -> FilteredReservoir:
        """What is replayed."""
        return FilteredReservoir(
            self.memory - round(self.validation * self.memory), shape, dtype, rng
        )

    def cost(self, batch: int) -> ImageCount:
        images = (batch + self.replay) * self.views_per_sample
        return ImageCount(trained=images, scored=images)

    def step(self, x: Tensor, y: Tensor) -> Step:
        if self.trainer.begins:  # whoever is held out from one step on a batch is from all
            lots = torch.rand(
                len(y), generator=self.trainer.rngs["draws"], device=self.trainer.torch_device
            )
            self._held = self.held_out.fitting(y, lots < self.validation)
        held = self._held  # for V, not for X                                                (b)
        stream = Samples.of(x, y)._replace(weight=(~held).float())
        replay = self.store.draw(self.replay, fallback=stream)  #                           (r)
        (both_out,) = self.forward(stream.then(replay))  # o of X                      (b + r, C)
        taught = self.previous(both_out.views)
        taught = self.correction.taught_factor * taught + self.correction.taught_shift  # o'

        share = self.old.sum() / self.seen.sum()  # lambda
        old_loss = distillation(both_out, taught, self.previous.known, self.temperature)
        old_loss = old_loss / self.temperature**2  # the paper has no T^2
        label_loss = cross_entropy(both_out, among=self.seen)
        loss = share * old_loss + (1 - share) * label_loss

        self.keep(x, y, part=~held)
        self.keep(x, y, self.held_out, part=held)
        self.descend(loss)
        return Step.of(
            loss, *self.trainer.apart(both_out, stream, replay), old=old_loss, labels=label_loss
        )

    @torch.no_grad()
    def on_task_end(self) -> None:
        """Fits a and b to what is held out, if both old and new classes are there."""
        held = int(self.held_out.size)
        x, y = self.held_out.x[:held], self.held_out.y[:held]
        of_new = self.new[y]
        if not bool(of_new.any()) or bool(of_new.all()):
            return
        logits = self.trainer.answering(self.views.normalise(x))[:, : len(self.classes)]
        self.trainer.spend("task ends", ImageCount(trained=0, scored=held))
        # a small problem, of many small steps: faster on the host
        new = self.new[: len(self.classes)].cpu()
        self.correction.set(self.new, *fitted(logits.cpu(), y.cpu(), new, self.decay))

    def scorer(self) -> nn.Module:
        return Corrected(self.trainer.answering, self.correction)
