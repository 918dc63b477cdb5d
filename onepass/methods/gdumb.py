"""GDumb: nothing is learned from the stream. A memory is kept balanced, greedily. When scores are
needed, a network is trained from scratch on this memory alone.

Paper: Prabhu, Torr, Dokania, "GDumb: A Simple Approach that Questions Our Progress in Continual
Learning", ECCV 2020. Greedy sampler, with k known classes and M slots (`memory.BalancedMemory`):

    (x, y) is stored if y is unknown or has fewer than floor(M / k) samples in the memory; if the
    memory is full, a random sample of the largest class is dropped for it

Dumb learner: SGD on E_{memory} -log softmax_{seen}(o)_y for `epochs` passes over the memory. The
norm of each gradient is clipped at 10. The learning rate is lr / 10 in pass 0. From pass 1 on it is
a cosine that restarts at the passes 1, 2, 4, 8, ...:

    lr(e) = lr / 100 + (lr - lr / 100) (1 + cos(pi (e - s) / s)) / 2,    s = 2^floor(log2 e)

With probability `cutmix` a batch is mixed (CutMix, alpha = 1). In every image, one box of pixels is
replaced by the same box of another image of the batch. The other image's label counts by its share
of the pixels.

Decisions:

- The defaults are the authors' (optimiser, learning rate, decay, batch of 16, 256 passes, CutMix),
  not the Adam of the other methods. GDumb has no step on the stream that could be comparable, and
  "one epoch for each task" cannot apply. The row of the GSA paper's table equals results of many
  passes. Only the augmentation is the common one. Any optimiser can be chosen; `sgd` has momentum
  0.9 here.
- If the network does not normalise, as the common MLP does not, the rate is a fifth of `lr`. The
  authors' value is for BatchNorm, which their MLP has. Accuracy on held-out MNIST, M=100 / 500 /
  1000, mean of two seeds (one at 1000): 78.8 / 92.3 / 95.2 with a fifth, 71.4 / 29.7 / 81.7 with
  all of `lr` (results/mnist.md).
- The same samples in the same slots give the same network. Each fit makes its generators for
  initialisation, order and augmentation anew from the seed, so scoring changes no state. The fitted
  network is not saved; a loaded learner fits it again, to the same bits.
- The last batch of a pass is filled up with samples of that pass at weight 0, so that all batches
  have the same shape. BatchNorm sees these samples, and CutMix may cut boxes from them.
- A user's own net starts each fit from the weights with which it was given.

Departures from the paper: none in the sampler.
Departures from the authors' code: it keeps the first floor(M / all classes) samples of each class,
because it knows the number of all classes. It trains in half precision. It reports the best pass,
chosen on the test set; here the last pass counts. It shifts (by up to 4 pixels) and mirrors images
at random; here they are cropped and greyed. `mirror`, in the preset `official`, trains each image
and its mirror image in every batch, not one of the two. Their MNIST runs have 128 passes. CutMix is
not used for vectors and images of one channel, as in their code.
Cost: nothing on the stream. For each state that is scored, memory (rounded up to a multiple of the
batch) x epochs images, forward and backward. Kept: raw samples and labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.base.news import told_passes
from onepass.base.parts import ImageCount, Step
from onepass.base.seeds import generator
from onepass.base.settings import Preset, require
from onepass.functional.losses import mean
from onepass.learning.registry import method
from onepass.learning.replay import WithMemory
from onepass.learning.trainer import Trainer
from onepass.learning.traits import Traits
from onepass.memory import BalancedMemory
from onepass.nets import Head
from onepass.nets.batch_norm_modes import NormLayer
from onepass.nets.optimisers import MOMENTUM, OptimiserKind

LARGEST_GRADIENT = 10.0  # the norm at which gradients are clipped
NORMALISING = (NormLayer, nn.GroupNorm, nn.LayerNorm)  # a net with one of these normalises
UNNORMALISED = 0.2  # factor of the learning rate for a network without normalisation


def learning_rate(epoch: int, highest: float) -> float:
    """Returns the learning rate of a pass over the memory, lr(e) of the header.

    >>> [round(learning_rate(epoch, 1.0), 3) for epoch in range(9)]
    [0.1, 1.0, 1.0, 0.505, 1.0, 0.855, 0.505, 0.155, 1.0]
    """
    if epoch == 0:
        return highest / 10
    start = 1 << (epoch.bit_length() - 1)
    lowest = highest / 100
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * (epoch - start) / start)) / 2


def cutmix(
    images: Tensor, probability: float, rng: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Replaces, with this probability, one box of pixels in each image by the same box of its
    partner, another image of the batch.

    Returns the images, the index of each one's partner, and the share of its own pixels that each
    image keeps."""
    # four numbers for the whole batch: is it mixed, the share it keeps, the box's centre
    lot, share, down, right = torch.rand(4, generator=rng, device=images.device).unbind()
    # the box has 1 - share of the pixels; side 0 means no box
    side = (1 - share).sqrt() * (lot < probability)
    rows = _box_side(side, down, images.shape[2])
    columns = _box_side(side, right, images.shape[3])
    box = rows.unsqueeze(1) & columns
    partner = torch.rand(len(images), generator=rng, device=images.device).argsort()
    mixed = torch.where(box, images.index_select(0, partner), images)
    return mixed, partner, 1 - box.float().mean()


def _box_side(side: Tensor, centre: Tensor, length: int) -> Tensor:
    """Returns a mask (length) of the pixels less than half a side from the centre. `side` and
    `centre` are fractions of the length."""
    half = (side * length).int() // 2
    from_centre = torch.arange(length, device=side.device) - (centre * length).int()
    return (from_centre >= -half) & (from_centre < half)


class Fit:
    """One fit: a new network, its trainer, and the passes over a learner's memory (`run`)."""

    def __init__(self, learner: GDumb) -> None:
        self.learner, base = learner, learner.trainer
        rng = generator(learner.seed, "draws of a fit", base.torch_device)
        self.trainer = Trainer(
            base.settings,
            base.shape,
            base.dtype,
            make_head=lambda features, rng: Head(features, len(learner.classes), rng),
            capturable=learner.traits.capturable,
            rngs={
                "initialisation": generator(learner.seed, "initialisation of a fit"),
                "draws": rng,
                "augmentation": rng,
            },
        )
        self.trainer.add_rows(0, len(learner.classes))
        self.rate = torch.zeros((), device=base.torch_device)
        for group in self.trainer.optimizer.param_groups:
            group["lr"] = self.rate  # on the device, where a captured step reads it
            if learner.optimizer == "sgd":
                group["momentum"] = MOMENTUM
        normalises = any(isinstance(module, NORMALISING) for module in self.trainer.model.modules())
        self.highest = learner.lr if normalises else UNNORMALISED * learner.lr
        colour = len(base.shape) == 3 and base.shape[0] > 1
        self.cutmix = learner.cutmix if colour else 0.0

    def run(self) -> ImageCount:
        """Trains the network in all passes over the memory. Returns the number of images that
        passed through it."""
        held, batch = int(self.learner.store.size), self.learner.fit_batch
        if not held:  # the user has deleted all samples
            return ImageCount(trained=0)
        # samples of one pass, up to a multiple of the batch; those past `held` have weight 0
        index = torch.arange(math.ceil(held / batch) * batch, device=self.rate.device)
        weights = torch.split((index < held).float(), batch)
        for epoch in told_passes(self.learner.epochs, "gdumb trains to be scored"):
            self.rate.fill_(learning_rate(epoch, self.highest))
            rng = self.trainer.rngs["draws"]
            shuffled = torch.rand(held, generator=rng, device=index.device).argsort()
            order = torch.split(shuffled[index % held], batch)
            for slots, weight in zip(order, weights, strict=True):
                self.trainer.run(self.step, slots, weight)
        return ImageCount(trained=len(index) * self.trainer.views.per_sample * self.learner.epochs)

    def step(self, slots: Tensor, weight: Tensor) -> Step:
        """Makes one optimiser step on the samples in these slots. Returns its loss."""
        store, trainer = self.learner.store, self.trainer
        times = trainer.views.per_sample
        y = store.y.index_select(0, slots).repeat(times)  # (n)
        views = trainer.views(store.x.index_select(0, slots))
        if self.cutmix:
            views, partner, own = cutmix(views, self.cutmix, trainer.rngs["draws"])
            logits = trainer.model.train_forward(views)  # (n, C)
            # own label by the own share of pixels, the partner's label by the rest
            of_partner = F.cross_entropy(logits, y.index_select(0, partner), reduction="none")
            each = own * F.cross_entropy(logits, y, reduction="none") + (1 - own) * of_partner
        else:
            each = F.cross_entropy(trainer.model.train_forward(views), y, reduction="none")
        loss = mean(each, weight.repeat(times))
        trainer.optimise(loss, largest_gradient=LARGEST_GRADIENT)
        return Step.of(loss)


@method(
    "gdumb",
    paper="Prabhu et al., GDumb: A Simple Approach that Questions Our Progress",
    year=2020,
    revision=2,
)
@dataclass(kw_only=True, eq=False)
class GDumb(WithMemory):
    """A balanced memory, and a network that is trained on it when scores are needed.

    Parameters
    ----------
    memory
        Number of samples in the memory.
    epochs
        Passes over the memory. If this is a power of 2, the last pass is near the lowest learning
        rate.
    fit_batch
        Number of samples in a step of the fit.
    cutmix
        Probability that a batch is mixed; vectors and images of one channel never are.

    The highest learning rate of the fit is `lr`, or a fifth of it if the network does not
    normalise.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> *_, last = onepass.evaluate(onepass.GDumb(memory=100, epochs=64, seed=0), stream)
    >>> last.accuracy > 80
    True
    """

    optimizer: OptimiserKind = "sgd"
    lr: float = 0.05
    weight_decay: float = 1e-6
    epochs: int = 256
    fit_batch: int = 16
    cutmix: float = 0.5

    traits: ClassVar[Traits] = Traits(
        least_memory=1,
        quick={"epochs": 64},
        trains_to_score=True,
        unsupported=dict.fromkeys(
            ("average", "distil", "repeats", "norms"),
            "steps train nothing, and a new network is fitted whenever scores are needed",
        ),
        exempt={
            "every_parameter_gets_a_gradient": "no step on the stream trains",
            "memory_reaches_the_gradient": "the memory is trained on only when scores are needed",
            "a_frozen_head_stays": "every fit starts with a new network, so no head is frozen",
        },
    )
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {
                "optimizer": "sgd",
                "lr": 0.05,
                "weight_decay": 1e-6,
                "epochs": 256,
                "fit_batch": 16,
                "cutmix": 0.5,
                "mirror": True,
            },
            "options and replication script of the authors' repository (CIFAR; MNIST has 128 "
            "passes and no mirror images), with mirror images for its random flips",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "epochs", self.epochs >= 1, "at least 1")
        require(self, "fit_batch", self.fit_batch >= 1, "at least 1")
        require(self, "cutmix", 0 <= self.cutmix <= 1, "between 0 and 1")
        require(
            self, "head", self.head == "trained", "trained: every fit starts with a new network"
        )

    def make_store(
        self, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator
    ) -> BalancedMemory:
        return BalancedMemory(self.memory, shape, dtype, rng, rows=len(self.seen))

    def cost(self, batch: int) -> ImageCount:
        return ImageCount(trained=0)

    def step(self, x: Tensor, y: Tensor) -> Step:
        self.keep(x, y)
        return Step.of(torch.zeros((), device=x.device))

    def scorer(self) -> nn.Module:
        """Trains a new network on the current memory. Returns it in evaluation mode."""
        fit = Fit(self)
        with torch.enable_grad():
            self.trainer.count_images("scores", fit.run())
        return fit.trainer.eval_model
