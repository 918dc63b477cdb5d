"""The contract that every method keeps: learn, predict, scores, snapshot, new_task, end_task, save.

Two layers. `learn` is the front door on the host: it checks the batch, maps labels to rows of the
head, sees task boundaries and grows the head. `step`, which each method writes, runs on the device
only: static shapes, no host synchronisation; what differs between steps are masks and indices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onepass.base import devices, inputs
from onepass.base.checksum import sha256
from onepass.base.errors import (
    CheckpointError,
    InputError,
    NotFittedError,
    OnepassError,
    TrainingError,
)
from onepass.base.expect import expect_alike
from onepass.base.locks import Turns
from onepass.base.parts import Images, Label, Step, parts_of
from onepass.base.settings import Preset
from onepass.base.text import as_html, brief, quoted
from onepass.functional.views import can_be_captured, expect_colours
from onepass.learning.checkpoint import file, validate
from onepass.learning.class_index import ClassBook, Texts
from onepass.learning.memory_contents import Forgotten, Kept, chosen, kept_in
from onepass.learning.network_copies import Copy
from onepass.learning.predictor import Predictor
from onepass.learning.self_distillation import SelfTaught
from onepass.learning.trainer import Trainer, linear_head, no_modules
from onepass.memory import Store
from onepass.nets import Head


@dataclass(kw_only=True, eq=False)
class Learner(SelfTaught, ABC):
    """The constructor is the configuration: stored as given, but numbers as Python's and as floats
    where a setting is one, and never changed.

    Parameters
    ----------
    net
        `auto` (an MLP for vectors and images up to 28 pixels, ResNet18 above), a registered name
        (`mlp`, `resnet18`, `resnet18-slim`; `onepass list networks`), or a module of your own that
        gives (samples, features); it is copied, never changed. `package.module:function` is a
        function from the shape of a sample to such a module. What is frozen in it (`requires_grad`
        False) stays as it is, BatchNorm's statistics too.
    head
        `trained`, or `frozen`: rows of the first task train until the first boundary, from then on
        every row stays, new ones at their birth values.
    optimizer
        `adam`, `sgd` and `nesterov` (momentum 0.9) with coupled decay, `adamw` with decoupled.
    lr, weight_decay
        The optimiser's learning rate, and its decay.
    augment
        `crop-grey` on images (drawn anew at every use), `crop-grey-reflected` (crops may reach past
        the image), `crop-grey-flip` (smaller crops, flips and greys), `contrastive` (smaller still,
        flips, colours and greys; pixels between 0 and 1 only), or `none`. Or a function of your
        own, f(samples, generator), that gives as many samples of the same shape: it is told the
        generator so that runs repeat, and gets images as float32, uint8 ones as pixel / 255,
        before mean and std. Vectors go through a function too. A step is captured on a GPU only
        if the function has an attribute `capturable` that is true.
    mirror
        Every image is also trained as its mirror image, which doubles the images of a step.
    mean, std
        Per channel, in units of pixel / 255, or of the values that float images have; vectors: one
        value for all features or one for each.
        A network that brings its own preprocessing has no use for them: they are ignored.
    average
        Predictions come from an exponential average of the network over the optimiser's steps: of
        this decay, `growing`, over the last seventeenth of all steps, or `arrivals`, over the last
        quarter of those since a class arrived; none: from the network itself. Training does not
        notice.
    mirror_scores
        An image's scores are the mean of its own and its mirror image's, for twice the time that a
        prediction takes. Training does not notice.
    distil, distil_temperature, distil_raw
        The average teaches the network on the views of each step, so strongly, at this temperature;
        with `distil_raw` also on the samples as they are, which the network is shown besides.
    distil_from
        An average of its own that teaches, by one of these rules; none: the one that predicts.
    repeats
        Steps of the optimiser for each batch, each with draws and views of its own; the memory
        takes the batch once, in the last one.
    gap
        When `new_task` is never called, unseen classes that arrive after this many batches without
        any mark a boundary.
    seed
        Of initialisation, draws and augmentation, each by a generator of its own.
    device
        `auto` (a GPU where there is one), `cpu`, `cuda`, `cuda:1` for the second GPU, or `mps`.
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
    later_steps_differ: ClassVar[bool] = False  # then a step may ask if this is the first task
    trains_to_score: ClassVar[bool] = False  # then it is scored at the end only, unless asked

    steps: int = field(init=False, default=0)
    book: ClassBook = field(init=False)
    task_ended: bool = field(init=False, default=False)
    only_predicts: bool = field(init=False, default=False)  # its memory is gone
    names: dict[Label, str] = field(init=False, default_factory=dict)
    spent: dict[str, Images] = field(init=False, default_factory=dict)
    _trainer: Trainer | None = field(init=False, default=None)
    _last_loss: Tensor | None = field(init=False, default=None)
    _scorer: tuple[tuple[int, int, bool], nn.Module] | None = field(init=False, default=None)
    _turns: Turns = field(init=False, default_factory=Turns)

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
        mode: the network that answers, or a module made for the state of now."""
        return self.answering

    @abstractmethod
    def cost(self, batch: int) -> Images:
        """The images of one step of the method's own on a stream batch of this size, once tasks and
        memory are under way; copies of the network count like the network itself."""

    # ---- the front door

    def learn(self, x: Any, y: Any) -> Step:
        """Learns a batch: images (n, c, h, w) as uint8 or float, or float vectors (n, d); labels
        are text or whole numbers, of one kind for as long as the learner lives.

        A batch that is refused, or whose step fails before the optimiser moves the network, leaves
        the learner as it was, but for a boundary that was due and room in the head. One that fails
        later leaves it unfinished: it predicts, and neither learns on nor is saved."""
        samples = inputs.as_samples(x)
        batch = inputs.as_labels(y, len(samples))
        expect_colours(self.augment, samples)
        with self._changing():
            if not self.prepared:
                self._prepare(tuple(samples.shape[1:]), samples.dtype)
            inputs.expect(samples, self.trainer.shape, self.trainer.dtype)
            brings_new = self.book.has_unseen(batch)
            if brings_new:
                self.book.expect_kind_of(batch[0])
            try:
                with self._undoing_admission(batch) if brings_new else nullcontext():
                    rows = self._admit(batch)
                    x = samples.to(self.where)
                    step = self.trainer.run(self.taught_step, x, rows, times=self.repeats)
                if not brings_new:  # it moves the book only once it has been learned
                    self.book.enter(batch)
            except BaseException:
                self._scorer = None
                if not self.steps:  # nothing was learned: as if nothing had been tried
                    self._trainer, self.book = None, ClassBook(self.gap, told=self.book.told)
                raise
            self.steps += 1
            self._last_loss = step.loss  # looked at when someone looks, not now
            self.trainer.unfinished = False
        return step

    def end_task(self) -> None:
        """Says that the running task is over, so that what a method does then is done before it is
        scored; `new_task` says it too. If it fails, the learner is unfinished."""
        with self._changing():
            self._end_task()

    def new_task(self) -> None:
        """Says that a new task begins; from the first call on boundaries are no longer inferred."""
        with self._changing():
            self._end_task()
            self.book.told = True
            self._begin_task()

    def scores(self, x: Any) -> Tensor:
        """Scores (n, classes), by default logits, one column for each of `classes`. Waits for a
        step that another thread is making."""
        with self._turns.look():
            return self._predictor().scores(x)

    def predict(self, x: Any) -> Tensor | Texts:
        """The label of the highest score, (n): numbers as a tensor, text as an array of NumPy's.
        Waits for a step that another thread is making."""
        with self._turns.look():
            return self._predictor().predict(x)

    def snapshot(self) -> Predictor:
        """What the learner knows now, for other threads to predict with while it goes on."""
        with self._turns.look(), torch.inference_mode(False):
            return self._predictor().on_its_own()

    @property
    def classes(self) -> list[Label]:
        """The labels seen so far, in order of arrival."""
        return list(self.book.labels)

    @property
    def class_names(self) -> list[str]:
        """What each of `classes` is called: as in the dataset that a run learned it from, else by
        its label."""
        return [self.names.get(label, str(label)) for label in self.book.labels]

    @property
    def task(self) -> int:
        """How many boundaries there have been."""
        return self.book.task

    @property
    def end_is_due(self) -> bool:
        """Whether the end of the running task, which has not come yet, is work for the method."""
        works = type(self).on_task_end is not Learner.on_task_end
        return works and self.book.batches > 0 and not self.task_ended

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
    def kept(self) -> Kept:
        """The samples that the memory holds now, as copies, with their labels."""
        with self._turns.look():
            return kept_in(self.stores.values(), self.classes)

    def forget(self, label: Any = None, *, where: Any = None) -> Forgotten:
        """Removes samples from the memory: those of a label, or those `where` a mask over `kept` is
        true; it may be a function of `kept.x` and `kept.y`. What comes next fills the free slots,
        and files that are saved from here on hold nothing of the samples.

        The weights are not unlearned: what the network has learned from the samples it still
        knows, and the class still has its row. Only GDumb's network, which is made from the memory
        when scores are asked for, knows no more than what is left."""
        if (label is None) == (where is None):
            raise InputError("forget takes a label, or where=, one of the two")
        if label is not None and label not in self.classes:
            raise InputError(f"label {quoted(label)} has not been learned: see learner.classes")
        with self._changing():
            kept = self.kept
            gone = chosen(kept.y == label if where is None else where, kept).to(self.where)
            sizes = [int(store.size) for store in self.stores.values()]
            for store, part in zip(self.stores.values(), torch.split(gone, sizes), strict=True):
                store.forget(part)
            self._scorer = None  # it may have been made from the memory
        removed = int(gone.sum())
        return Forgotten(removed, len(kept) - removed, unlearned=self.trains_to_score)

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

    def __repr__(self) -> str:
        made = super().__repr__()
        return f"<{made}: {self._progress}>" if self.steps else made

    def _repr_html_(self) -> str:
        settings = {name: brief(value) for name, value in self._chosen().items()}
        return as_html(type(self).__name__, {**settings, "learned": self._progress})

    @property
    def _progress(self) -> str:
        return f"{len(self.classes)} classes after {self.steps} steps"

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
        super().check_settings()
        self.require("lr", self.lr > 0, "positive")
        self.require("weight_decay", self.weight_decay >= 0, "zero or more")
        self.require("gap", self.gap >= 1, "at least 1")
        self.require("std", self.std is None or min(self.std, default=0) > 0, "positive")
        same = (self.mean is None) == (self.std is None)
        self.require("mean", same, "given together with std")
        capturable = self.engine != "graph" or can_be_captured(self.augment)
        self.require("engine", capturable, "auto or eager for an augment that is not capturable")

    def prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Makes network, optimiser and parts for samples of this shape; `learn` does it where it
        was not done before."""
        if self.steps:
            raise InputError(f"this {type(self).__name__} has learned already")
        with self._changing():
            self._prepare(shape, dtype)

    # ---- saving

    def save(self, path: str | Path, *, memory: bool = True) -> None:
        """Writes the learner; `onepass.open` reads it and goes on, bit for bit. One whose learning
        has diverged is not written: what was saved before is worth more.

        With `memory=False` the file holds no training samples: who opens it can predict, and
        cannot learn on."""
        file.write(Path(path), file.content(self, memory=memory))

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning changes."""
        with self._turns.look():
            self._expect_finished()
            own = {"steps": self.steps, "book": self.book.state_dict()}
            if not self.steps:
                return own
            return {**own, "finished": self.task_ended, **self.trainer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the saved learner was; this one must have learned nothing yet."""
        if self.steps:
            raise CheckpointError("a state can only be loaded into a learner that is new")
        with (
            self._turns.change(),
            torch.inference_mode(False),
            devices.current(self.device),
        ):
            book = validate.book_of(state, self.gap)
            try:
                self._become(state, book)
            except BaseException as problem:
                self._trainer, self.steps = None, 0
                if isinstance(problem, CheckpointError) or not isinstance(problem, Exception):
                    raise
                raise CheckpointError(f"the state does not fit: {problem}") from problem
            self.book = book

    def good_state(self, *, memory: bool = True) -> dict[str, Any]:
        """The state, for a file, perhaps as if the memory were empty; unless learning has
        diverged."""
        with self._turns.look():
            self.check_finite()
            state = self.state_dict()
            if not memory and self.steps:
                state["parts"] |= {name: one.blank_state() for name, one in self.stores.items()}
            return state

    def scorer_state(self) -> dict[str, Any] | None:
        """What scores are made with besides the network, for a file that leaves out the memory;
        None if there is no memory to leave out."""
        if not self.steps or not self.stores:
            return None
        with self._turns.look():
            return _own_tensors(self._made_scorer(), self.answering)

    def only_predict(self, state: dict[str, Any]) -> None:
        """The memory is not there: scores are made with this `scorer_state`, and nothing is
        learned from here on."""
        made = self._made_scorer()  # of an empty memory: what it holds is all to come
        own = _own_tensors(made, self.answering)
        expect_alike(state, own, "scorer")
        for name, value in own.items():
            value.copy_(state[name])
        self.only_predicts = True

    def check_finite(self) -> None:
        """Raises a TrainingError if learning has diverged. It is asked at every look (scores, a
        snapshot, a file), not in a step, which would have to wait for the device."""
        if self._last_loss is not None and not bool(torch.isfinite(self._last_loss)):
            raise self._diverged(f"the loss of {self.key!r} is {float(self._last_loss)}")
        if self.prepared:
            self._expect_finite(self.model)

    def params_sha256(self) -> str:
        """A fingerprint of names, dtypes and bytes of the network's parameters and buffers."""
        with self._turns.look():
            return sha256(dict(self.model.state_dict()))

    def state_sha256(self) -> str:
        """The same over everything that learning changes: memory, optimiser, generators too."""
        return sha256(self.state_dict())

    # ---- behind the door

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One at a time, with gradients whether or not the caller has switched them off. What is
        made in inference mode can never be trained."""
        if self.only_predicts:
            raise InputError(
                "this learner was saved without its memory: it predicts, and cannot learn on; a "
                "file of save(path) with the memory can"
            )
        self._expect_finished()
        if torch.is_inference_mode_enabled():
            raise InputError("a learner cannot learn inside torch.inference_mode(): leave it first")
        with self._turns.change(), torch.enable_grad(), devices.current(self.device):
            yield

    def _expect_finished(self) -> None:
        if self._trainer is not None and self._trainer.unfinished:
            raise TrainingError(
                f"this {type(self).__name__} is unfinished: learning failed after step "
                f"{self.steps} when the network had moved. It still predicts; to learn on, reopen "
                "the last checkpoint with onepass.open"
            )

    def _expect_finite(self, net: nn.Module) -> None:
        if not _all_finite(net):
            raise self._diverged(f"the parameters of {self.key!r} are not finite")

    def _diverged(self, what: str) -> TrainingError:
        return TrainingError(
            f"{what} at step {self.steps}: learning has diverged. A smaller lr (now {self.lr:g}) "
            "or smaller features may help; what was saved before is as it was"
        )

    def _become(self, state: dict[str, Any], book: ClassBook) -> None:
        """Goes on where the learner was that has this state. The book is left to the caller."""
        self._scorer = None
        if not state["steps"]:
            return
        self._prepare(tuple(state["shape"]), validate.DTYPES[state["dtype"]])
        trainer, classes = self.trainer, len(book.labels)
        validate.expect_rows_for(state, trainer, classes)
        trainer.make_room(len(state["new"]))
        trainer.add_rows(0, classes, train=not (self.head == "frozen" and book.task))
        validate.expect_fitting(state, trainer, classes)
        trainer.load_state_dict(state, state["steps"])
        self.steps, self.task_ended = state["steps"], state["finished"]

    def _prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._trainer = None
        try:
            self._trainer = Trainer(
                self,
                shape,
                dtype,
                make_head=self.make_head,
                extra_modules=self.extra_modules,
                capturable=self.capturable,
            )
        except OnepassError:
            raise
        except Exception as problem:  # whatever the net does with samples that are not for it
            told = " ".join(str(problem).split())
            raise InputError(f"the net cannot take samples of {shape}: {told}") from problem
        try:
            self.build(shape, dtype)
            self.make_averages(self._trainer)
            self._trainer.parts = parts_of(self)
        except BaseException:
            self._trainer = None
            raise

    @contextmanager
    def _undoing_admission(self, batch: list[Label]) -> Iterator[None]:
        """Takes new classes back if what is done here fails before it has moved the network; not
        the boundary before them, nor the room that the head made for them."""
        self._draw_boundary_before(batch)
        before = deepcopy(self.book)
        known = len(before.labels)
        try:
            with self.trainer.undoing_rows(
                known, known + len(set(batch) - self.book.row_of.keys())
            ):
                yield
        except BaseException:
            if not self.trainer.unfinished:
                self.book = before
            raise

    def _admit(self, batch: list[Label]) -> Tensor:
        """Returns rows of the labels; unseen classes get the next rows, after a boundary if one is
        due."""
        if self.book.has_unseen(batch):
            self._draw_boundary_before(batch)
            known = len(self.book.labels)
            self.book.enter(batch)
            train = not (self.head == "frozen" and self.task)
            self.trainer.add_rows(known, len(self.book.labels), train=train)
        rows = torch.tensor([self.book.row_of[label] for label in batch])
        if self.where.type != "cuda":
            return rows.to(self.where)
        return rows.pin_memory().to(self.where, non_blocking=True)  # without waiting for the GPU

    def _draw_boundary_before(self, batch: list[Label]) -> None:
        if self.book.boundary_due(batch):
            self._end_task()
            self._begin_task()

    def _end_task(self) -> None:
        if self.book.batches and not self.task_ended:
            self.trainer.unfinished = True
            self.on_task_end()
            self.trainer.finish()
            self.task_ended = True
            self.trainer.unfinished = False

    def _begin_task(self) -> None:
        """Draws the boundary, unless the running task has had no batch yet."""
        if not self.book.batches:
            return
        self.trainer.unfinished = True
        self.book.close_task()
        self.task_ended = False
        if self.later_steps_differ and self.task == 1:
            self.trainer.expect_another_step()
        self.trainer.new_task()
        self.trainer.unfinished = False

    def _predictor(self) -> Predictor:
        """What predicts now; a scorer is made once for each state of the learner."""
        if not self.steps:
            raise NotFittedError(f"this {type(self).__name__} has learned nothing yet: call learn")
        trainer = self.trainer
        return Predictor(
            classes=tuple(self.classes),
            shape=trainer.shape,
            dtype=trainer.dtype,
            where=trainer.where,
            normalise=trainer.views.normalise,
            scorer=self._made_scorer(),
            mirrored=self.mirror_scores and len(trainer.shape) == 3,
        )

    def _made_scorer(self) -> nn.Module:
        now = (self.steps, self.task, self.task_ended)
        if self._scorer is None or self._scorer[0] != now:
            # what is made here may have to be trained
            with torch.inference_mode(False), devices.current(self.device):
                self.check_finite()
                made = self.scorer()
                if made is not self.evaluator:
                    self._expect_finite(made)
            self._scorer = now, made
        return self._scorer[1]


def _own_tensors(scorer: nn.Module, network: nn.Module) -> dict[str, Tensor]:
    """Those of a scorer that are not the network's, by name."""
    if scorer is network:
        return {}
    shared = tuple(f"{name}." for name, module in scorer.named_modules() if module is network)
    return {name: one for name, one in scorer.state_dict().items() if not name.startswith(shared)}


@torch.no_grad()
def _all_finite(net: nn.Module) -> bool:
    """Whether every parameter is, asked in one go: a GPU is waited for once. A sum with anything in
    it that is not finite is not either; it is many times faster than to look at each number."""
    sums = [one.sum() for one in net.parameters()]
    if not sums or bool(torch.isfinite(torch.stack(sums)).all()):
        return True
    return all(bool(torch.isfinite(one).all()) for one in net.parameters())
