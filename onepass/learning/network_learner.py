"""The methods that train a network: their settings, the vocabulary of a step, and its trainer.

Learning has two layers. `learn` runs on the host: it checks the batch, maps labels to rows of the
class head, detects task boundaries and grows the head. `step`, which each method writes, runs on
the device. It has static shapes and never synchronises with the host: only the values of masks and
indices differ between steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass.base import devices, inputs
from onepass.base.errors import CheckpointError, InputError, NotFittedError, OnepassError
from onepass.base.parts import ImageCount, Label, Outputs, Samples, StatefulPart, Step, parts_of
from onepass.base.settings import require
from onepass.base.text import quoted
from onepass.functional.views import Augment, Views, can_be_captured, expect_pixels
from onepass.learning import execution
from onepass.learning.checkpoint import validate
from onepass.learning.checkpoint.predicting import restrict_to_predicting, scorer_state
from onepass.learning.class_index import ClassIndex
from onepass.learning.divergence import expect_finite_parameters, expect_not_diverged
from onepass.learning.learner import Learner
from onepass.learning.memory_contents import (
    MemoryContents,
    RemovalReport,
    contents_of,
    removal_mask,
    remove_samples,
    stores_of,
)
from onepass.learning.network_copies import Rule
from onepass.learning.predictor import Predictor
from onepass.learning.trainer import Trainer, Training, linear_head, no_modules
from onepass.memory import Store
from onepass.nets import Classifier, Head, Precision, optimisers

Moment = tuple[int, int, bool]  # steps, task, and whether the task has ended


@dataclass(kw_only=True, eq=False)
class NetworkLearner(Learner):
    """A method of continual learning that trains a network.

    Parameters
    ----------
    net
        `auto` (an MLP for vectors and images up to 28 pixels, ResNet18 above), a registered name
        (`mlp`, `resnet18`, `resnet18-slim`; `onepass list networks`), or a module of your own that
        returns (samples, features) and is copied. `package.module:function` names a function from
        the shape of a sample to a module of this kind. Layers of the module that are frozen
        (`requires_grad` False) stay frozen, with their BatchNorm statistics.
    head
        `trained`, or `frozen`: the first task trains its rows, and after the first task boundary no
        row changes; rows of later classes keep their initial values.
    optimizer
        `adam`, `sgd` or `nesterov` (momentum 0.9) with coupled weight decay; `adamw` decouples it.
    lr
        The learning rate.
    weight_decay
        The weight decay.
    augment
        `crop-grey` on images (drawn anew at every use), `crop-grey-reflected` (crops may reach past
        the image), `crop-grey-flip` (smaller crops, flips and greys), `contrastive` (smaller still,
        flips, colours and greys; pixels between 0 and 1 only), or `none`. Or a function of your
        own, f(samples, generator), that returns as many samples of the same shape. It should draw
        from the generator, so that runs repeat. It gets vectors, or images as float32 before mean
        and std (uint8 images as pixel / 255). A step is captured on a GPU only if the function has
        an attribute `capturable` that is true.
    mirror
        Train every image and its mirror image, which doubles the images of a step.
    average
        Predict with a moving average of the weights: a decay, `growing` (over the last 1/17 of all
        steps) or `arrivals` (over the last quarter of the steps since a class arrived), both over
        at most 1000 steps. None predicts with the network itself. Training does not change.
    mirror_scores
        Average the scores of an image and its mirror image, which doubles the time of a prediction.
        Training does not change.
    distil
        The weight of distillation from the average to the network, on the views of each step.
    distil_from
        The rule of a separate average that teaches, as in `average`. None: the average that
        predicts teaches too.
    distil_temperature
        The temperature of both softmaxes in the distillation.
    distil_raw
        Distil on the samples without augmentation too, at the cost of another forward pass.
    repeats
        Steps per batch, each with its own draws and views. The memory takes the batch once, in the
        last of them.
    engine
        `auto` (a CUDA graph on a GPU), `eager` or `graph`.
    precision
        The network's arithmetic: `fp32`, or `bf16` by autocast.
    """

    net: str | nn.Module = "auto"
    head: Literal["trained", "frozen"] = "trained"
    optimizer: optimisers.OptimiserKind = "adam"
    lr: float = 1e-3
    weight_decay: float = 1e-4
    augment: Augment = "crop-grey"
    mirror: bool = False
    engine: execution.EngineKind = "auto"
    precision: Precision = "fp32"
    average: Rule | None = None
    mirror_scores: bool = False
    distil: float = 0.0
    distil_from: Rule | None = None
    distil_temperature: float = 4.0
    distil_raw: bool = False
    repeats: int = 1

    standardises_features: ClassVar[bool] = True
    _state_keys: ClassVar[tuple[str, ...]] = validate.OF_THE_TRAINER

    store: Store = field(init=False)
    _trainer: Trainer | None = field(init=False, default=None)
    _last_loss: Tensor | None = field(init=False, default=None)
    _scorer: tuple[Moment, nn.Module] | None = field(init=False, default=None)
    # the state whose scorer was made, and its images counted, before the learner was saved
    _counted_scorer: Moment | None = field(init=False, default=None)

    # ---- what a method writes

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Makes the method's parts, once the shape of a sample is known. Every `StatefulPart` that
        it assigns to an attribute is saved, resumed, grown, and notified of classes and tasks."""

    def make_head(self, features: int, rng: torch.Generator) -> Head:
        """Returns the class head for this number of features, with values drawn from `rng`."""
        return linear_head(features, rng)

    def extra_modules(self, features: int, rng: torch.Generator) -> dict[str, nn.Module]:
        """Returns modules to train besides backbone and head, by their name in `self.model`: none,
        unless the method overrides it."""
        return no_modules(features, rng)

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> Step:
        """Makes one training step on raw samples x and the head's rows y of their labels. Returns
        its report."""

    def scorer(self) -> nn.Module:
        """Returns a module in evaluation mode, from normalised inputs to scores (n, C) over the
        head's capacity. By default it is the network that predicts. A method may return another,
        fitted to its current state."""
        return self.trainer.predicting_model

    @abstractmethod
    def cost(self, batch: int) -> ImageCount:
        """Returns the number of images that one step processes for a stream batch of this size,
        when the memory is full and an old task exists. Copies of the network count like the
        network. Self-distillation is not included: `images_per_batch` adds it."""

    def cost_of_storing(self, batch: int) -> ImageCount:
        """Returns the number of those images in `cost` that only the last of the `repeats` steps
        processes."""
        return ImageCount(0)

    def teacher_images(self, batch: int) -> int:
        """Returns the number of images that the distillation's teacher is evaluated on in a step:
        by default all images that the step trains on."""
        return self.cost(batch).trained

    # ---- the vocabulary of a step
    #
    #     stream = Samples.of(x, y)                                 # (b)
    #     replay = self.store.draw(self.replay, fallback=stream)    # (r)
    #     stream_out, replay_out = self.forward(stream, replay)     # logits (b, C) (r, C)
    #     ...                                                       # the paper: a loss of these
    #     self.keep(x, y)
    #     self.descend(loss)
    #     return Step.of(loss, stream_out, replay_out)
    #
    # b: samples of the stream batch, r: replayed samples, C: rows of the head, with spare ones.

    @property
    def model(self) -> Classifier:
        """The network that trains."""
        return self.trainer.model

    @property
    def views(self) -> Views:
        """The function from raw samples to the network's inputs, augmented for training."""
        return self.trainer.views

    @property
    def seen(self) -> Tensor:
        """A mask (C) of the head's rows that have a class."""
        return self.trainer.seen

    @property
    def log_seen(self) -> Tensor:
        """The logarithm of `seen`, (C), computed when classes arrive: added to logits, it restricts
        a softmax to the classes seen."""
        return self.trainer.log_seen

    @property
    def new(self) -> Tensor:
        """A mask (C) of the rows whose class arrived after the last task boundary."""
        return self.trainer.new

    @property
    def old(self) -> Tensor:
        """A mask (C) of the rows whose class arrived before the last task boundary."""
        return self.trainer.old

    def forward(self, *batches: Samples, apart: bool = False) -> Outputs:
        """Returns an output for each batch: the logits of its views, with rows and weights. One
        forward pass takes all batches, so that BatchNorm normalises them together. With `apart`
        each batch has its own forward pass."""
        x = batches[0].x if len(batches) == 1 else torch.cat([batch.x for batch in batches])
        return self._forward_apart(x, batches) if apart else self._forward(x, batches)

    def _forward(self, x: Tensor, batches: Sequence[Samples]) -> Outputs:
        views, logits = self.model.view_forward(x, self.views)
        sizes = [len(batch.y) for batch in batches]
        pieces = self.views.cut(logits, sizes)
        # views are cut on demand, because cutting copies mirrored ones
        outputs = [
            self.trainer.output(pieces[index], batch, partial(self._piece, views, sizes, index))
            for index, batch in enumerate(batches)
        ]
        self.trainer.record_forward(outputs, batches)
        return Outputs(outputs, logits if self.views.per_sample == 1 else None)

    def _piece(self, views: Tensor, sizes: list[int], index: int) -> Tensor:
        return self.views.cut(views, sizes)[index]

    def _forward_apart(self, x: Tensor, batches: Sequence[Samples]) -> Outputs:
        sizes = [len(batch.y) for batch in batches]
        outputs = Outputs([])
        for batch, piece in zip(batches, self.views.cut(self.views(x), sizes), strict=True):
            logits = self.model.train_forward(piece)
            outputs.append(self.trainer.output(logits, batch, partial(Tensor.detach, piece)))
            self.trainer.record_forward(outputs[-1:], [batch])
        return outputs

    def keep(self, x: Tensor, y: Tensor, store: Store | None = None, **fields: Tensor) -> None:
        """Offers the batch to `store`, by default the learner's memory. The memory takes it in the
        next `descend` or at the end of the step, so that a draw before that never returns it. With
        `repeats`, only the call in the last step counts."""
        into = self.store if store is None else store
        self.trainer.store_later(lambda: into.add(x, y, **fields), x, y, *fields.values())

    def descend(self, loss: Tensor) -> None:
        """Makes one optimiser step. Spare and frozen rows of the head do not move."""
        self.trainer.optimise(loss)

    # ---- what every learner has

    @property
    def trainer(self) -> Trainer:
        """The network with everything that trains it. Raises a NotFittedError before the first
        batch, unless `prepare` was called."""
        if self._trainer is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not seen a sample yet: call learn, or prepare"
            )
        return self._trainer

    @property
    def kept(self) -> MemoryContents:
        """Copies of the samples in all memories of the learner, with their labels."""
        with self._lock.reading():
            return contents_of(stores_of(self), self.classes)

    def forget(self, label: Any = None, *, where: Any = None) -> RemovalReport:
        """Removes samples from the memory: all of a label, or those where a mask over `kept` is
        true. `where` is the mask or a function of `kept.x` and `kept.y` that returns it. Later
        samples fill the free slots. Files saved from now on do not hold the removed samples.
        Returns a report.

        The network's weights do not change, and the class keeps its row: nothing is unlearned.
        The exception is GDumb, which trains its network from the memory when it predicts."""
        if (label is None) == (where is None):
            raise InputError("forget takes either a label or where=: give exactly one of the two")
        if label is not None and label not in self.classes:
            raise InputError(f"label {quoted(label)} has not been learned: see learner.classes")
        with self._exclusive():
            self._scorer = self._counted_scorer = None  # they may depend on the memory
            kept = self.kept
            gone = removal_mask(kept.y == label if where is None else where, kept)
            return remove_samples(stores_of(self), gone, unlearned=self.traits.trains_to_score)

    @property
    def views_per_sample(self) -> int:
        """The number of views of a sample that a step trains on: 2 for mirrored images, else 1.
        Before the first sample it is 2 if `mirror` is set."""
        return self.views.per_sample if self._prepared else 1 + self.mirror

    def check_settings(self) -> None:
        super().check_settings()
        self._check_averages()
        require(self, "repeats", self.repeats >= 1, "at least 1")
        require(self, "lr", self.lr > 0, "positive")
        require(self, "weight_decay", self.weight_decay >= 0, "zero or more")
        capturable = self.engine != "graph" or can_be_captured(self.augment)
        require(self, "engine", capturable, "auto or eager for an augment that is not capturable")

    def _check_averages(self) -> None:
        for name in ("average", "distil_from"):
            rule = getattr(self, name)
            decay = rule if isinstance(rule, float | int) else 0
            require(self, name, 0 <= decay < 1, "a decay in [0, 1), growing, arrivals, or none")
        require(self, "distil", self.distil >= 0, "zero or more")
        taught = self.average is not None or self.distil_from is not None
        require(self, "distil", taught or not self.distil, "0 where there is no average to teach")
        used = self.distil_from is None or self.distil > 0
        require(self, "distil_from", used, "none where distil is 0, so that nothing is taught")
        require(self, "distil_temperature", self.distil_temperature > 0, "positive")

    def expect_healthy(self) -> None:
        expect_not_diverged(self)

    def images_per_batch(self, batch: int) -> ImageCount:
        """Returns the number of images processed for a stream batch of this size, when the memory
        is full and an old task exists. It includes distillation and all `repeats`. Copies of the
        network count like the network."""
        # `storing` is done once per batch, everything else once per repeat
        own, storing = self.cost(batch), self.cost_of_storing(batch)
        taught = self.teacher_images(batch) if self.distil else 0
        trained = own.trained - storing.trained + taught * self.distil_raw
        scored = own.scored - storing.scored + taught
        return storing + ImageCount(self.repeats * trained, self.repeats * scored)

    @property
    def image_counts(self) -> dict[str, ImageCount]:
        return self.trainer.image_counts if self._prepared else {}

    @property
    def capture_seconds(self) -> float:
        return self.trainer.capture_seconds if self._prepared else 0.0

    # ---- internals

    @property
    def _prepared(self) -> bool:
        return self._trainer is not None

    def _prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._trainer = None
        try:
            self._trainer = Trainer(
                Training.of(self),
                shape,
                dtype,
                make_head=self.make_head,
                extra_modules=self.extra_modules,
                capturable=self.traits.capturable,
            )
        except (OnepassError, MemoryError):
            raise
        except Exception as problem:  # a user's net may raise anything for a wrong shape
            reason = " ".join(str(problem).split())
            raise InputError(f"the net cannot take samples of {shape}: {reason}") from problem
        try:
            self.build(shape, dtype)
            self._trainer.attach_parts(parts_of(self))
        except BaseException:
            self._trainer = None
            raise

    def _unprepare(self) -> None:
        self._trainer = None

    @property
    def _unfinished(self) -> bool:
        return self._trainer is not None and self._trainer.unfinished

    @_unfinished.setter
    def _unfinished(self, unfinished: bool) -> None:
        self.trainer.unfinished = unfinished

    @property
    def _parts(self) -> dict[str, StatefulPart]:
        return self.trainer.parts

    def _expect_samples(self, samples: Tensor) -> None:
        expect_pixels(self.augment, samples)
        if self._prepared:
            inputs.expect_samples(samples, self.trainer.shape, self.trainer.dtype)

    def _learn_batch(self, samples: Tensor, labels: list[Label]) -> Step:
        brings_new = self.class_index.has_unseen(labels)
        try:
            with self._undo_new_classes_if_failing(labels) if brings_new else nullcontext():
                rows = self._assign_rows(labels)
                x = samples.to(self.trainer.torch_device)
                step = self.trainer.run(self.step, x, rows)
            if not brings_new:  # a batch of known classes counts only once it is learned
                self.class_index.enter(labels)
        except BaseException:
            self._scorer = None
            if not self.steps:  # nothing is learned yet: start again from the settings
                self._unprepare()
                self.class_index = ClassIndex(self.gap, told=self.class_index.told)
            raise
        self.steps += 1
        self._last_loss = step.loss  # read later: reading it now would wait for the device
        self.trainer.unfinished = False
        return step

    @contextmanager
    def _undo_new_classes_if_failing(self, batch: list[Label]) -> Iterator[None]:
        """Removes the batch's new classes again if the body fails before the optimiser's update.
        A task boundary before them and growth of the head stay."""
        self._draw_boundary_before(batch)
        before = deepcopy(self.class_index)
        known = len(before.labels)
        try:
            with self.trainer.undo_new_rows_if_failing(
                known, known + len(set(batch) - self.class_index.row_of.keys())
            ):
                yield
        except BaseException:
            if not self.trainer.unfinished:
                self.class_index = before
            raise

    def _assign_rows(self, batch: list[Label]) -> Tensor:
        """Returns the head's rows of the labels. Unseen classes get the next free rows, after a
        boundary if one is due."""
        if self.class_index.has_unseen(batch):
            self._draw_boundary_before(batch)
            known = len(self.class_index.labels)
            self.class_index.enter(batch)
            train = not (self.head == "frozen" and self.task)
            self.trainer.add_rows(known, len(self.class_index.labels), train=train)
        rows = torch.tensor([self.class_index.row_of[label] for label in batch])
        if self.trainer.torch_device.type != "cuda":
            return rows.to(self.trainer.torch_device)
        return rows.pin_memory().to(
            self.trainer.torch_device, non_blocking=True
        )  # pinned memory, so that the copy does not wait for the GPU

    def _work_at_task_end(self) -> None:
        self.on_task_end()
        self.trainer.finish()

    def _work_at_task_begin(self) -> None:
        if self.traits.later_steps_differ and self.task == 1:
            self.trainer.expect_changed_step()
        self.trainer.new_task()

    def _parameters(self) -> dict[str, Any]:
        return dict(self.model.state_dict())

    def _own_state(self) -> dict[str, Any]:
        return self.trainer.state_dict()

    def _restore(self, state: dict[str, Any], book: ClassIndex) -> None:
        self._scorer = None
        if not book.labels:
            raise CheckpointError("book has no labels after the first step")
        validate.expect_sizes(state["shape"], state["dtype"], state["parts"])
        self._prepare(tuple(state["shape"]), validate.DTYPES[state["dtype"]])
        trainer, classes = self.trainer, len(book.labels)
        validate.expect_head_rows(state, trainer, classes)
        trainer.make_room(len(state["new"]))
        trainer.add_rows(0, classes, train=not (self.head == "frozen" and book.task))
        validate.expect_fitting_state(state, trainer, classes)
        trainer.load_state_dict(state, state["steps"])

    def _predicting_state(self, *, memory: bool) -> dict[str, Any]:
        kept = scorer_state(self) if self._only_predicts or not memory else None
        made = {} if kept is None else {"scorer": kept}
        return {**made, "scorer_counted": self._scorer_is_counted}

    def _load_predicting_state(self, content: dict[str, Any]) -> None:
        if "scorer" in content:
            restrict_to_predicting(self, content["scorer"])
        if content.get("scorer_counted"):  # older files do not say
            self._counted_scorer = self._moment

    @property
    def _moment(self) -> Moment:
        """The state for which a scorer is made."""
        return self.steps, self.task, self._task_ended

    @property
    def _scorer_is_counted(self) -> bool:
        """True if `image_counts` already has the images of this state's scorer."""
        made = self._scorer is not None and self._scorer[0] == self._moment
        return made or self._counted_scorer == self._moment

    def _predictor(self) -> Predictor:
        self._expect_learned()
        trainer = self.trainer
        return Predictor(
            classes=tuple(self.classes),
            shape=trainer.shape,
            dtype=trainer.dtype,
            where=trainer.torch_device,
            normalise=trainer.views.normalise,
            scorer=self._current_scorer(),
            sampler=self.sampler,
            mirrored=self.mirror_scores and len(trainer.shape) == 3,
        )

    def _current_scorer(self) -> nn.Module:
        now = self._moment
        if self._scorer is None or self._scorer[0] != now:
            # a scorer may have to be trained, which inference mode forbids
            with (
                torch.inference_mode(False),
                devices.selected_gpu(self.device),
                devices.own_precision(),
                devices.naming_large_settings(self._sizes_of_step),
            ):
                expect_not_diverged(self)
                counts = dict(self.trainer.image_counts)
                made = self.scorer()
                if self._counted_scorer == now:
                    self.trainer.image_counts = counts
                if made is not self.trainer.eval_model:
                    expect_finite_parameters(self, made)
            self._scorer = now, made
        return self._scorer[1]


def expect_network(learner: Learner, what: str) -> NetworkLearner:
    """Returns the learner. Raises an InputError if its method trains no network, which `what`
    needs."""
    if not isinstance(learner, NetworkLearner):
        raise InputError(f"{what} needs a method that trains a network: {learner.key} trains none")
    return learner
