"""The contract that every method keeps: learn, predict, scores, snapshot, new_task, end_task, save.

Two layers. `learn` is the front door on the host: it checks the batch, maps labels to rows of the
head, sees task boundaries and grows the head. `step`, which each method writes, runs on the device
only: static shapes, no host synchronisation; what differs between steps are masks and indices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onepass import checkpoint, files, inputs
from onepass.classbook import ClassBook
from onepass.copies import Copy
from onepass.errors import CheckpointError, InputError, NotFittedError
from onepass.memory import Store
from onepass.nets import Head
from onepass.parts import Images, Part, Preset, Step
from onepass.predictor import Predictor
from onepass.steps import Steps
from onepass.trainer import Trainer, Training, linear_head, no_modules
from onepass.turns import Turns

DTYPES = {"uint8": torch.uint8, "float32": torch.float32}


@dataclass(kw_only=True, eq=False)
class Learner(Steps, Training, ABC):
    """The constructor is the configuration: stored as given, NumPy's numbers as Python's, and never
    changed.

    Parameters
    ----------
    net
        `auto` (an MLP for vectors and images up to 28 pixels, ResNet18 above), a registered name
        (`mlp`, `resnet18`; `onepass list networks`), or a module of your own that gives (samples,
        features); it is copied, never changed.
    head
        `trained`, or `frozen`: rows of the first task train until the first boundary, from then on
        every row stays, new ones at their birth values.
    optimizer, lr, weight_decay
        `adam`, `sgd` and `nesterov` (momentum 0.9) with coupled decay, `adamw` with decoupled.
    augment
        `crop-grey` on images (drawn anew at every use), `crop-grey-reflected` (crops may reach past
        the image), `contrastive` (smaller crops, flips, colours and greys), or `none`.
    mirror
        Every image is also trained as its mirror image, which doubles the images of a step.
    mean, std
        Per channel, in units of pixel / 255; vectors: one value for all features or one for each.
        A network that brings its own preprocessing has no use for them: they are ignored.
    gap
        When `new_task` is never called, unseen classes that arrive after this many batches without
        any mark a boundary.
    seed
        Of initialisation, draws and augmentation, each by a generator of its own.
    device
        `auto` (a GPU where there is one), `cpu` or `cuda`.
    engine
        `auto` (a CUDA graph on a GPU), `eager` or `graph`.
    precision
        Of the network's arithmetic: `fp32`, or `bf16` by autocast.
    """

    gap: int = 10

    presets: ClassVar[dict[str, Preset]] = {}  # other settings by name, each with its source
    exempt: ClassVar[dict[str, str]] = {}  # checks that cannot apply, with the reason
    quick: ClassVar[dict[str, Any]] = {}  # settings under which a test takes seconds
    forgets: ClassVar[bool] = False  # near fine-tuning by design, where classes do not come back
    capturable: ClassVar[bool] = True  # whether a step can be a CUDA graph
    trains_to_score: ClassVar[bool] = False  # then it is scored at the end only, unless asked

    steps: int = field(init=False, repr=False, default=0)
    book: ClassBook = field(init=False, repr=False)
    task_ended: bool = field(init=False, repr=False, default=False)
    spent: dict[str, Images] = field(init=False, repr=False, default_factory=dict)
    _trainer: Trainer | None = field(init=False, repr=False, default=None)
    _scorer: tuple[tuple[int, int, bool], nn.Module] | None = field(
        init=False, repr=False, default=None
    )
    _turns: Turns = field(init=False, repr=False, default_factory=Turns)

    # ---- what a method writes

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Makes the parts that the method keeps, once the shape of a sample is known. Every `Part`
        that it puts into an attribute is saved, resumed, grown and told of classes and tasks."""

    def make_head(self, features: int, rng: torch.Generator) -> Head:
        return linear_head(features, rng)

    def extra_modules(self, features: int, rng: torch.Generator) -> dict[str, nn.Module]:
        """Modules that train beside backbone and head, by the name they have in `self.model`."""
        return no_modules(features, rng)

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> Step:
        """One step on raw samples and rows, on the device; written with what `Steps` has."""

    def on_task_end(self) -> None:
        """What the method does when a task has ended, before it is scored; may train."""

    def scorer(self) -> nn.Module:
        """What gives scores (n, C) of normalised inputs over the head's capacity, in evaluation
        mode: the network, or a module made for the state that the learner is in now."""
        return self.evaluator

    @abstractmethod
    def cost(self, batch: int) -> Images:
        """The images of a step on a stream batch of this size, once tasks and memory are under
        way; copies of the network count like the network itself."""

    # ---- the front door

    def learn(self, x: Any, y: Any) -> Step:
        """Learns a batch: images as uint8 (n, c, h, w), or float vectors (n, d); whole labels."""
        samples = inputs.as_samples(x)
        labels = inputs.as_labels(y, len(samples))
        with self._turns.change():
            if not self.prepared:
                self._prepare(tuple(samples.shape[1:]), samples.dtype)
            inputs.expect(samples, self.trainer.shape, self.trainer.dtype)
            before = self.book.mark()
            try:
                rows = self._admit(labels)
                step = self.trainer.run(self.step, samples.to(self.where), rows)
            except BaseException:
                self._withdraw(before)
                raise
            self.steps += 1
        return step

    def end_task(self) -> None:
        """Says that the running task is over, so that what a method does then is done before it is
        scored; `new_task` says it too."""
        with self._turns.change():
            self._end_task()

    def new_task(self) -> None:
        """Says that a new task begins; from the first call on boundaries are no longer inferred."""
        with self._turns.change():
            self.book.told = True
            self._end_task()
            if self.book.close_task():
                self._begin_task()

    def scores(self, x: Any) -> Tensor:
        """Scores (n, classes), by default logits, one column for each of `classes`. Waits for a
        step that another thread is making."""
        with self._turns.look():
            return self._predictor().scores(x)

    def predict(self, x: Any) -> Tensor:
        """The label of the highest score, (n). Waits for a step that another thread is making."""
        with self._turns.look():
            return self._predictor().predict(x)

    def snapshot(self) -> Predictor:
        """What the learner knows now, for other threads to predict with while it goes on."""
        with self._turns.look():
            return self._predictor().on_its_own()

    @property
    def classes(self) -> list[int]:
        """The labels seen so far, in order of arrival."""
        return list(self.book.labels)

    @property
    def task(self) -> int:
        """How many boundaries there have been."""
        return self.book.task

    @property
    def prepared(self) -> bool:
        """Whether network, optimiser and parts are there; from then on no setting changes."""
        return self._trainer is not None

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not seen a sample yet: call learn, or prepare"
            )
        return self._trainer

    @property
    def stores(self) -> dict[str, Store]:
        """The memories that the method keeps, by name."""
        parts = self.trainer.parts.items()
        return {name: part for name, part in parts if isinstance(part, Store)}

    @property
    def memory_bytes(self) -> int:
        """What the samples that are kept take, once the memory is full."""
        return sum(store.bytes for store in self.stores.values())

    @property
    def copy_bytes(self) -> int:
        """What copies of the network take."""
        return sum(part.bytes for part in self.trainer.parts.values() if isinstance(part, Copy))

    @property
    def views_per_sample(self) -> int:
        """How often a step trains each sample: twice if it is mirrored, which vectors are not."""
        return self.views.per_sample if self.prepared else 1 + self.mirror

    # ---- configuration

    def __post_init__(self) -> None:
        self.make_plain()
        self.check_types()
        self.check_settings()
        self.book = ClassBook(self.gap)

    def __setattr__(self, name: str, value: object) -> None:
        """A setting that is already in use would only seem to change."""
        setting = self.__dataclass_fields__.get(name)
        if setting is not None and setting.init and getattr(self, "_trainer", None) is not None:
            raise InputError(f"{name} cannot be changed once learning has begun: make a new one")
        super().__setattr__(name, value)

    def check_settings(self) -> None:
        self.require("lr", self.lr > 0, "positive")
        self.require("weight_decay", self.weight_decay >= 0, "zero or more")
        self.require("gap", self.gap >= 1, "at least 1")
        self.require("std", self.std is None or min(self.std, default=0) > 0, "positive")
        same = (self.mean is None) == (self.std is None)
        self.require("mean", same, "given together with std")

    def prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Makes network, optimiser and parts for samples of this shape; `learn` does it where it
        was not done before."""
        if self.steps:
            raise InputError(f"this {type(self).__name__} has learned already")
        with self._turns.change():
            self._prepare(shape, dtype)

    # ---- saving

    def save(self, path: str | Path) -> None:
        """Writes the learner; `onepass.open` reads it and goes on, bit for bit."""
        checkpoint.write(Path(path), checkpoint.content(self))

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning changes."""
        with self._turns.look():
            own = {"steps": self.steps, "book": self.book.state_dict()}
            if not self.steps:
                return own
            return {**own, "finished": self.task_ended, **self.trainer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the saved learner was; this one must have learned nothing yet."""
        if self.steps:
            raise CheckpointError("a state can only be loaded into a learner that is new")
        with self._turns.change():
            before, self.book = self.book, ClassBook.from_state(state["book"])
            if not state["steps"]:
                return
            try:
                self._prepare(tuple(state["shape"]), DTYPES[state["dtype"]])
                self.trainer.load_state_dict(
                    state, classes=len(self.classes), task=self.task, steps=state["steps"]
                )
                self.steps, self.task_ended = state["steps"], state["finished"]
            except BaseException:
                self._trainer, self.book, self.steps = None, before, 0
                raise

    def params_sha256(self) -> str:
        """A fingerprint of names, dtypes and bytes of the network's parameters and buffers."""
        with self._turns.look():
            return files.sha256(dict(self.model.state_dict()))

    def state_sha256(self) -> str:
        """The same over everything that learning changes: memory, optimiser, generators too."""
        return files.sha256(self.state_dict())

    # ---- behind the door

    def _prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._trainer = None
        made = Trainer(
            self,
            shape,
            dtype,
            make_head=self.make_head,
            extra_modules=self.extra_modules,
            capturable=self.capturable,
        )
        self._trainer = made
        try:
            self.build(shape, dtype)
            made.parts = self._parts()
        except BaseException:
            self._trainer = None
            raise

    def _parts(self) -> dict[str, Part]:
        """Every attribute that is a part; one that only a list or a dict holds would be forgotten
        when the learner is saved."""
        found: dict[str, Part] = {}
        for name, value in vars(self).items():
            if isinstance(value, Part) and value not in found.values():
                found[name] = value
        for name, value in vars(self).items():
            inside = value.values() if isinstance(value, dict) else value
            for one in inside if isinstance(value, list | tuple | dict) else ():
                if isinstance(one, Part) and one not in found.values():
                    raise InputError(f"{name} holds a part: give it an attribute of its own")
        return found

    def _admit(self, labels: Tensor) -> Tensor:
        """Rows of the labels; unseen classes get the next rows, after a boundary if one is due."""
        batch, known = labels.tolist(), len(self.book.labels)
        if self.book.boundary_due(batch):
            self._end_task()
        if self.book.enter(batch):
            self._begin_task()
        if len(self.book.labels) > known:
            train = not (self.head == "frozen" and self.task)
            self.trainer.add_rows(known, len(self.book.labels), train=train)
        rows = torch.tensor([self.book.row_of[label] for label in batch])
        if self.where.type == "cpu":
            return rows
        return rows.pin_memory().to(self.where, non_blocking=True)  # without waiting for the GPU

    def _withdraw(self, before: tuple[int, int, int, int]) -> None:
        """A step has failed: its classes are as unknown as they were. (A boundary that was inferred
        before it stays: what a method does at a task's end cannot be undone.)"""
        self._scorer = None
        if not self.steps:  # nothing was learned: as if nothing had been tried
            self._trainer, self.book = None, ClassBook(self.gap, told=self.book.told)
            return
        came = len(self.book.labels)
        self.book.back_to(before)
        if came > len(self.book.labels):
            self.trainer.withdraw_rows(len(self.book.labels), came)

    def _end_task(self) -> None:
        if self.book.batches and not self.task_ended:
            try:
                self.on_task_end()
            finally:
                self.trainer.aside.forget()
            self.task_ended = True

    def _begin_task(self) -> None:
        self.task_ended = False
        self.trainer.new_task()

    def _predictor(self) -> Predictor:
        """What predicts now; a scorer is made once for each state of the learner."""
        if not self.steps:
            raise NotFittedError(f"this {type(self).__name__} has learned nothing yet: call learn")
        now = (self.steps, self.task, self.task_ended)
        if self._scorer is None or self._scorer[0] != now:
            self._scorer = now, self.scorer()
        trainer = self.trainer
        return Predictor(
            classes=tuple(self.classes),
            shape=trainer.shape,
            dtype=trainer.dtype,
            where=trainer.where,
            normalise=trainer.views.normalise,
            scorer=self._scorer[1],
        )
