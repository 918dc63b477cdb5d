"""The contract that every method keeps: learn, predict, scores, snapshot, new_task, end_task, save.

Two layers. `learn` is the front door on the host: it checks the batch, maps labels to rows of the
head, sees task boundaries and grows the head. `step`, which each method writes, runs on the device
only: static shapes, no host synchronisation; what differs between steps are masks and indices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

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
from onepass.base.locks import LearnerLock
from onepass.base.parts import ImageCount, Label, Outputs, Samples, Step, parts_of
from onepass.base.settings import (
    Preset,
    as_text,
    check_name,
    check_types,
    make_plain,
    non_defaults,
    require,
    setting_names,
    shown_as_made,
)
from onepass.base.text import as_html, brief, quoted
from onepass.functional.views import Augment, Views, can_be_captured, expect_colours
from onepass.learning import execution
from onepass.learning.checkpoint import file, validate
from onepass.learning.class_index import ClassBook, Texts
from onepass.learning.divergence import expect_finite, expect_finite_network
from onepass.learning.memory_contents import (
    MemoryContents,
    RemovalReport,
    chosen,
    kept_in,
    removed_from,
    stores_of,
)
from onepass.learning.network_copies import Rule
from onepass.learning.predictor import Predictor
from onepass.learning.trainer import Trainer, Training, linear_head, no_modules
from onepass.learning.traits import Traits
from onepass.memory import Store
from onepass.nets import Classifier, Head, Precision, optimisers


@dataclass(kw_only=True, eq=False)
class Learner(ABC):
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
    lr
        The optimiser's learning rate.
    weight_decay
        The optimiser's decay of weights.
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
    mean
        What is subtracted from the values of each channel, in units of pixel / 255, or of the
        values that float images have; vectors: one value for all features or one for each. Ignored
        where a network brings its own preprocessing.
    std
        What they are then divided by, in the same units.
    average
        Predictions come from an exponential average of the network over the optimiser's steps: of
        this decay, `growing`, over the last seventeenth of all steps, or `arrivals`, over the last
        quarter of those since a class arrived; none: from the network itself. Training does not
        notice.
    mirror_scores
        An image's scores are the mean of its own and its mirror image's, for twice the time that a
        prediction takes. Training does not notice.
    distil
        How strongly the average teaches the network, on the views of each step; 0: not at all.
    distil_from
        An average of its own that teaches, by one of these rules; none: the one that predicts.
    distil_temperature
        The temperature of both softmaxes where the average teaches.
    distil_raw
        The average also teaches on the samples as they are, which the network is shown besides.
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

    net: str | nn.Module = "auto"
    head: Literal["trained", "frozen"] = "trained"
    optimizer: optimisers.OptimiserKind = "adam"
    lr: float = 1e-3
    weight_decay: float = 1e-4
    augment: Augment = "crop-grey"
    mirror: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    seed: int = 0
    device: str = "auto"
    engine: execution.EngineKind = "auto"
    precision: Precision = "fp32"
    average: Rule | None = None
    mirror_scores: bool = False
    distil: float = 0.0
    distil_from: Rule | None = None
    distil_temperature: float = 4.0
    distil_raw: bool = False
    repeats: int = 1
    gap: int = 10

    key: ClassVar[str] = ""  # the name of the method
    presets: ClassVar[dict[str, Preset]] = {}  # other settings by name, each with its source
    traits: ClassVar[Traits] = Traits()

    store: Store = field(init=False)
    steps: int = field(init=False, default=0)
    book: ClassBook = field(init=False)
    _task_ended: bool = field(init=False, default=False)
    _only_predicts: bool = field(init=False, default=False)  # its memory is gone
    _names: dict[Label, str] = field(init=False, default_factory=dict)
    _trainer: Trainer | None = field(init=False, default=None)
    _last_loss: Tensor | None = field(init=False, default=None)
    _scorer: tuple[tuple[int, int, bool], nn.Module] | None = field(init=False, default=None)
    _lock: LearnerLock = field(init=False, default_factory=LearnerLock)

    # ---- what a method writes

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:  # noqa: B027
        """Makes the parts that the method keeps, once the shape of a sample is known. Every
        `StatefulPart` that it puts into an attribute is saved, resumed, grown and told of classes
        and tasks."""

    def make_head(self, features: int, rng: torch.Generator) -> Head:
        return linear_head(features, rng)

    def extra_modules(self, features: int, rng: torch.Generator) -> dict[str, nn.Module]:
        """Modules that train beside backbone and head, by the name they have in `self.model`."""
        return no_modules(features, rng)

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> Step:
        """Makes one step on raw samples and rows, on the device."""

    def on_task_end(self) -> None:  # noqa: B027
        """Does what the method does when a task has ended, before it is scored; may train."""

    def scorer(self) -> nn.Module:
        """Returns what gives scores (n, C) of normalised inputs over the head's capacity, in
        evaluation mode: the network that answers, or a module made for the state of now."""
        return self.trainer.answering

    @abstractmethod
    def cost(self, batch: int) -> ImageCount:
        """Returns the images of one step of the method's own on a stream batch of this size, once
        tasks and memory are under way; copies of the network count like the network itself."""

    def cost_of_letting_in(self, batch: int) -> ImageCount:
        """Returns those of them that only the last step on a batch needs."""
        return ImageCount(0)

    def shown(self, batch: int) -> int:
        """Returns how many of them the average is shown too: those whose logits the step trains."""
        return self.cost(batch).trained

    # ---- what a step is written with
    #
    #     stream = Samples.of(x, y)                                 # (b)
    #     replay = self.store.draw(self.replay, fallback=stream)    # (r)
    #     stream_out, replay_out = self.forward(stream, replay)     # logits (b, C) (r, C)
    #     ...                                                       # the paper: a loss of these
    #     self.keep(x, y)
    #     self.descend(loss)
    #     return Step.of(loss, stream_out, replay_out)
    #
    # b, r and C stand for the samples of the stream, those of the replay, and the rows of the head.

    @property
    def model(self) -> Classifier:
        """The network that trains."""
        return self.trainer.model

    @property
    def views(self) -> Views:
        return self.trainer.views

    @property
    def seen(self) -> Tensor:
        """Rows of the head that have a class, a mask (C)."""
        return self.trainer.seen

    @property
    def log_seen(self) -> Tensor:
        """Its logarithm, worked out when classes arrive: added to logits, it leaves the others out
        of a softmax (C)."""
        return self.trainer.log_seen

    @property
    def new(self) -> Tensor:
        """Rows whose class is new since the last boundary, a mask (C)."""
        return self.trainer.new

    @property
    def old(self) -> Tensor:
        """Rows whose class is older, a mask (C)."""
        return self.trainer.old

    def forward(self, *batches: Samples, apart: bool = False) -> Outputs:
        """Returns logits of the views of each batch, from one forward of all: BatchNorm sees them
        as one batch. With `apart` each batch has a forward of its own, and BatchNorm sees it
        alone."""
        x = batches[0].x if len(batches) == 1 else torch.cat([batch.x for batch in batches])
        return self._forward_apart(x, batches) if apart else self._forward(x, batches)

    def _forward(self, x: Tensor, batches: Sequence[Samples]) -> Outputs:
        views, logits = self.model.view_forward(x, self.views)
        sizes = [len(batch.y) for batch in batches]
        pieces = self.views.cut(logits, sizes)
        # views are cut only if somebody asks for them: mirrored ones would have to be copied
        outputs = [
            self.trainer.output(pieces[place], batch, partial(self._piece, views, sizes, place))
            for place, batch in enumerate(batches)
        ]
        self.trainer.note(outputs, batches)
        return Outputs(outputs, logits if self.views.per_sample == 1 else None)

    def _piece(self, views: Tensor, sizes: list[int], place: int) -> Tensor:
        return self.views.cut(views, sizes)[place]

    def _forward_apart(self, x: Tensor, batches: Sequence[Samples]) -> Outputs:
        sizes = [len(batch.y) for batch in batches]
        outputs = Outputs([])
        for batch, piece in zip(batches, self.views.cut(self.views(x), sizes), strict=True):
            logits = self.model.train_forward(piece)
            outputs.append(self.trainer.output(logits, batch, partial(Tensor.detach, piece)))
            self.trainer.note(outputs[-1:], [batch])
        return outputs

    def keep(self, x: Tensor, y: Tensor, store: Store | None = None, **fields: Tensor) -> None:
        """Offers the batch to the memory, which has it after the next `descend`, or at the end of
        the step: what is drawn before does not know it."""
        into = self.store if store is None else store
        self.trainer.let_in(lambda: into.add(x, y, **fields), x, y, *fields.values())

    def descend(self, loss: Tensor) -> None:
        """One optimiser step; rows of the head that are spare or frozen stay where they are."""
        self.trainer.optimise(loss)

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
            if not self._prepared:
                self._prepare(tuple(samples.shape[1:]), samples.dtype)
            inputs.expect(samples, self.trainer.shape, self.trainer.dtype)
            brings_new = self.book.has_unseen(batch)
            if brings_new:
                self.book.expect_kind_of(batch[0])
            try:
                with self._undoing_admission(batch) if brings_new else nullcontext():
                    rows = self._admit(batch)
                    x = samples.to(self.trainer.torch_device)
                    step = self.trainer.run(self.step, x, rows)
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

    def end_task(self) -> bool:
        """Says that the running task is over, so that what a method does then is done before it is
        scored; `new_task` says it too. Returns whether the method had anything to do. If it fails,
        the learner is unfinished."""
        with self._changing():
            return self._end_task()

    def new_task(self) -> None:
        """Says that a new task begins; from the first call on boundaries are no longer inferred."""
        with self._changing():
            self._end_task()
            self.book.told = True
            self._begin_task()

    def scores(self, x: Any) -> Tensor:
        """Scores (n, classes), by default logits, one column for each of `classes`. Waits for a
        step that another thread is making."""
        with self._lock.looking():
            return self._predictor().scores(x)

    def predict(self, x: Any) -> Tensor | Texts:
        """The label of the highest score, (n): numbers as a tensor, text as an array of NumPy's.
        Waits for a step that another thread is making."""
        with self._lock.looking():
            return self._predictor().predict(x)

    def snapshot(self) -> Predictor:
        """What the learner knows now, for other threads to predict with while it goes on."""
        with self._lock.looking(), torch.inference_mode(False):
            return self._predictor().on_its_own()

    @property
    def classes(self) -> list[Label]:
        """The labels seen so far, in order of arrival."""
        return list(self.book.labels)

    @property
    def class_names(self) -> list[str]:
        """What each of `classes` is called: as in the dataset that a run learned it from, else by
        its label. Set them as a dataset has them: of labels 0, 1 and so on."""
        return [self._names.get(label, str(label)) for label in self.book.labels]

    @class_names.setter
    def class_names(self, names: Sequence[str]) -> None:
        self._names = dict(enumerate(names))

    @property
    def task(self) -> int:
        """How many boundaries there have been."""
        return self.book.task

    @property
    def _prepared(self) -> bool:
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
    def kept(self) -> MemoryContents:
        """The samples that the memory holds now, as copies, with their labels."""
        with self._lock.looking():
            return kept_in(stores_of(self), self.classes)

    def forget(self, label: Any = None, *, where: Any = None) -> RemovalReport:
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
            self._scorer = None  # it may have been made from the memory
            kept = self.kept
            gone = chosen(kept.y == label if where is None else where, kept)
            return removed_from(stores_of(self), gone, unlearned=self.traits.trains_to_score)

    @property
    def views_per_sample(self) -> int:
        """How often a step trains each sample: twice if it is mirrored, which vectors are not."""
        return self.views.per_sample if self._prepared else 1 + self.mirror

    def __repr__(self) -> str:
        made = shown_as_made(self)
        return f"<{made}: {self._progress}>" if self.steps else made

    def _repr_html_(self) -> str:
        settings = {name: brief(value) for name, value in non_defaults(self).items()}
        return as_html(type(self).__name__, {**settings, "learned": self._progress})

    @property
    def _progress(self) -> str:
        return f"{len(self.classes)} classes after {self.steps} steps"

    # ---- configuration

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign] # or @dataclass would write one

    def __post_init__(self) -> None:
        make_plain(self)
        check_types(self)
        self.check_settings()
        self.book = ClassBook(self.gap)

    def __setattr__(self, name: str, value: object) -> None:
        """A setting that is already in use would only seem to change."""
        setting = self.__dataclass_fields__.get(name)
        if setting is not None and setting.init and getattr(self, "_trainer", None) is not None:
            raise InputError(f"{name} cannot be changed once learning has begun: make a new one")
        super().__setattr__(name, value)

    def check_settings(self) -> None:
        """Raises an InputError if settings are no good; a method checks its own besides."""
        usual = {setting.name: setting.default for setting in fields(self)}
        for name, why in self.traits.unsupported.items():
            check_name(type(self), name)
            wanted = f"{as_text(usual[name])}: {why}"
            require(self, name, getattr(self, name) == usual[name], wanted)
        self._check_averages()
        require(self, "repeats", self.repeats >= 1, "at least 1")
        require(self, "lr", self.lr > 0, "positive")
        require(self, "weight_decay", self.weight_decay >= 0, "zero or more")
        require(self, "gap", self.gap >= 1, "at least 1")
        require(self, "std", self.std is None or min(self.std, default=0) > 0, "positive")
        same = (self.mean is None) == (self.std is None)
        require(self, "mean", same, "given together with std")
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
        require(self, "distil_from", used, "none where distil is 0 and nothing is taught")
        require(self, "distil_temperature", self.distil_temperature > 0, "positive")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments (scikit-learn's name for them, so that its `clone` works)."""
        return {name: getattr(self, name) for name in setting_names(type(self))}

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
        with self._lock.looking():
            self._expect_finished()
            own = {"steps": self.steps, "book": self.book.state_dict()}
            if not self.steps:
                return own
            return {**own, "finished": self._task_ended, **self.trainer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the saved learner was; this one must have learned nothing yet."""
        if self.steps:
            raise CheckpointError("a state can only be loaded into a learner that is new")
        with (
            self._lock.learning(),
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

    def params_sha256(self) -> str:
        """A fingerprint of names, dtypes and bytes of the network's parameters and buffers."""
        with self._lock.looking():
            return sha256(dict(self.model.state_dict()))

    def state_sha256(self) -> str:
        """The same over everything that learning changes: memory, optimiser, generators too."""
        return sha256(self.state_dict())

    # ---- behind the door

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One at a time, with gradients whether or not the caller has switched them off. What is
        made in inference mode can never be trained."""
        if self._only_predicts:
            raise InputError(
                "this learner was saved without its memory: it predicts, and cannot learn on; a "
                "file of save(path) with the memory can"
            )
        self._expect_finished()
        if torch.is_inference_mode_enabled():
            raise InputError("a learner cannot learn inside torch.inference_mode(): leave it first")
        with self._lock.learning(), torch.enable_grad(), devices.current(self.device):
            yield

    def _expect_finished(self) -> None:
        if self._trainer is not None and self._trainer.unfinished:
            raise TrainingError(
                f"this {type(self).__name__} is unfinished: learning failed after step "
                f"{self.steps} when the network had moved. It still predicts; to learn on, reopen "
                "the last checkpoint with onepass.open"
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
        self.steps, self._task_ended = state["steps"], state["finished"]

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
        except OnepassError:
            raise
        except Exception as problem:  # whatever the net does with samples that are not for it
            told = " ".join(str(problem).split())
            raise InputError(f"the net cannot take samples of {shape}: {told}") from problem
        try:
            self.build(shape, dtype)
            self._trainer.tell(parts_of(self))
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
        if self.trainer.torch_device.type != "cuda":
            return rows.to(self.trainer.torch_device)
        return rows.pin_memory().to(
            self.trainer.torch_device, non_blocking=True
        )  # without waiting for the GPU

    def _draw_boundary_before(self, batch: list[Label]) -> None:
        if self.book.boundary_due(batch):
            self._end_task()
            self._begin_task()

    def _end_task(self) -> bool:
        """Ends the running task if that is due, and returns whether the method had work to do."""
        if self._task_ended or not self.book.batches:
            return False
        self.trainer.unfinished = True
        self.on_task_end()
        self.trainer.finish()
        self._task_ended = True
        self.trainer.unfinished = False
        return type(self).on_task_end is not Learner.on_task_end

    def _begin_task(self) -> None:
        """Draws the boundary, unless the running task has had no batch yet."""
        if not self.book.batches:
            return
        self.trainer.unfinished = True
        self.book.close_task()
        self._task_ended = False
        if self.traits.later_steps_differ and self.task == 1:
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
            where=trainer.torch_device,
            normalise=trainer.views.normalise,
            scorer=self._made_scorer(),
            mirrored=self.mirror_scores and len(trainer.shape) == 3,
        )

    def _made_scorer(self) -> nn.Module:
        now = (self.steps, self.task, self._task_ended)
        if self._scorer is None or self._scorer[0] != now:
            # what is made here may have to be trained
            with torch.inference_mode(False), devices.current(self.device):
                expect_finite(self)
                made = self.scorer()
                if made is not self.trainer.evaluator:
                    expect_finite_network(self, made)
            self._scorer = now, made
        return self._scorer[1]
