"""What the step of a method is written with, in the order of use:

    stream = self.as_samples(x, y)                            # (b)
    replay = self.store.draw(self.replay, fallback=stream)    # (r)
    stream_out, replay_out = self.forward(stream, replay)     # logits (b, C) (r, C)
    ...                                                       # the paper: a loss of these
    self.keep(x, y)
    self.descend(loss)
    return Step.of(loss, stream_out, replay_out)

b, r and C stand for the samples of the stream, those of the replay, and the rows of the head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from onepass.base.parts import Images, Output, Samples, Show, not_shown
from onepass.functional.views import Views
from onepass.memory import Store
from onepass.nets import Classifier

if TYPE_CHECKING:
    from onepass.learning.trainer import Generators, Trainer

PREDICTION_BATCH = {"cpu": 512, "mps": 512, "cuda": 2048}


class Steps(ABC):
    """Reaches the trainer of a learner, whose steps it helps to write."""

    store: Store
    spent: dict[str, Images]

    @property
    @abstractmethod
    def trainer(self) -> Trainer:
        """The learner has it."""

    # ---- what there is

    @property
    def model(self) -> Classifier:
        """The network that trains."""
        return self.trainer.model

    @property
    def evaluator(self) -> Classifier:
        """The same network in evaluation mode: BatchNorm's statistics stay, modes too."""
        return self.trainer.evaluator

    @property
    def views(self) -> Views:
        return self.trainer.views

    @property
    def rngs(self) -> Generators:
        """Generators by purpose: `draws` and `augmentation` on the device, `initialisation` on the
        host."""
        return self.trainer.rngs

    @property
    def where(self) -> torch.device:
        return self.trainer.where

    @property
    def seen(self) -> Tensor:
        """Rows of the head that have a class, a mask (C)."""
        return self.trainer.seen

    @property
    def new(self) -> Tensor:
        """Rows whose class is new since the last boundary, a mask (C)."""
        return self.trainer.new

    @property
    def old(self) -> Tensor:
        """Rows whose class is older, a mask (C)."""
        return self.trainer.old

    @property
    def begins(self) -> bool:
        """Whether this is the first step on its batch."""
        return self.trainer.begins

    @property
    def lets_in(self) -> bool:
        """Whether this is the last step on its batch, which the memory takes it in."""
        return self.trainer.lets_in

    # ---- what is done

    def as_samples(self, x: Tensor, y: Tensor) -> Samples:
        """The stream batch: samples that all count."""
        return Samples(x, y, torch.ones_like(y, dtype=torch.float32))

    def forward(self, *batches: Samples) -> list[Output]:
        """Logits of the views of each batch, from one forward of all: BatchNorm sees them as one
        batch."""
        x = batches[0].x if len(batches) == 1 else torch.cat([batch.x for batch in batches])
        views, logits = self.model.view_forward(x, self.views)
        sizes = [len(batch.y) for batch in batches]
        pieces = self.views.cut(logits, sizes)
        # views are cut only if somebody asks for them: mirrored ones would have to be copied
        return [
            self.output(pieces[place], batch, partial(self._piece, views, sizes, place))
            for place, batch in enumerate(batches)
        ]

    def _piece(self, views: Tensor, sizes: list[int], place: int) -> Tensor:
        return self.views.cut(views, sizes)[place]

    def forward_apart(self, *batches: Samples) -> list[Output]:
        """The same from a forward of its own for each batch: BatchNorm sees each alone."""
        sizes = [len(batch.y) for batch in batches]
        views = self.views(torch.cat([batch.x for batch in batches]))
        return [
            self.output(self.model.train_forward(piece), batch, partial(torch.Tensor.detach, piece))
            for batch, piece in zip(batches, self.views.cut(views, sizes), strict=True)
        ]

    def apart(self, output: Output, *batches: Samples) -> list[Output]:
        """What was said of several batches that were forwarded as one, batch by batch: a step
        reports the stream first, then what it replayed."""
        pieces = self.views.cut(output.logits, [len(batch.y) for batch in batches])
        return [self.output(piece, batch) for piece, batch in zip(pieces, batches, strict=True)]

    def output(self, logits: Tensor, batch: Samples, show: Show = not_shown) -> Output:
        """Logits of views of a batch, with the batch's rows and weights for each view."""
        times = self.views.per_sample
        if times == 1:
            return Output(logits, batch.y, batch.weight, show)
        return Output(logits, batch.y.repeat(times), batch.weight.repeat(times), show)

    @torch.no_grad()
    def features_of(self, x: Tensor, network: Classifier | None = None) -> Tensor:
        """Features (n, features) of raw samples as they are, in evaluation mode, in fp32; those of
        the network that trains, or of another one."""
        evaluator = self.evaluator if network is None else network
        pieces = torch.split(x, PREDICTION_BATCH[self.where.type])
        found = [evaluator.features(self.views.normalise(piece)).float() for piece in pieces]
        return torch.cat(found)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Of every trainable parameter; zeros where the loss does not reach."""
        trainable = self.trainer.trainable
        return list(torch.autograd.grad(loss, trainable, allow_unused=True, materialize_grads=True))

    def keep(self, x: Tensor, y: Tensor, store: Store | None = None, **fields: Tensor) -> None:
        """Offers the batch to the memory, which has it after the next `descend`, or at the end of
        the step: what is drawn before does not know it."""
        into = self.store if store is None else store
        self.trainer.let_in(lambda: into.add(x, y, **fields), x, y, *fields.values())

    def descend(self, loss: Tensor) -> None:
        """One optimiser step; rows of the head that are spare or frozen stay where they are."""
        self.trainer.descend(loss)

    def descend_along(self, gradients: Sequence[Tensor]) -> None:
        """One optimiser step along gradients of every trainable parameter."""
        self.trainer.descend_along(gradients)

    def spend(self, purpose: Literal["task ends", "scores"], images: Images) -> None:
        """Counts images that went through a network outside of steps."""
        self.spent[purpose] = self.spent.get(purpose, Images(0)) + images
