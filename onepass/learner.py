"""The contract that every method keeps: learn, predict, scores, new_task, save.

Two layers. `learn` is the front door on the host: it checks the batch, maps labels to rows of the
head, sees task boundaries and grows the head. `step`, which each method writes, runs on the device
only: static shapes, no host synchronisation; what differs between steps are masks and indices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from onepass import devices, engine, files, inputs, optimise
from onepass.classbook import ClassBook
from onepass.errors import CheckpointError, InputError, NotFittedError
from onepass.nets import (
    Classifier,
    Head,
    Precision,
    at_once,
    backbone,
    compile_kernels,
    evaluating,
    feature_count,
)
from onepass.parts import Images, Output, Part, Preset, Samples, Step
from onepass.seeds import generator
from onepass.settings import Configured
from onepass.views import Augment, Views

FIRST_CAPACITY = 16
PREDICTION_BATCH = {"cpu": 512, "cuda": 2048}
DTYPES = {"uint8": torch.uint8, "float32": torch.float32}


@dataclass(kw_only=True, eq=False)
class Learner(Configured, ABC):
    """The constructor is the configuration: it is stored as given and never changed.

    Parameters
    ----------
    net
        `auto` (an MLP for vectors and images up to 28 pixels, ResNet18 above), `mlp`, `resnet18`,
        or a module of your own that gives (samples, features); it is copied, never changed.
    head
        `trained`, or `frozen`: rows of the first task train until the first boundary, from then on
        every row stays, new ones at their birth values.
    optimizer, lr, weight_decay
        `adam`, `sgd` and `nesterov` (momentum 0.9) with coupled decay, `adamw` with decoupled.
    augment
        `crop-grey` on images (drawn anew at every use), `contrastive` (smaller crops, flips,
        colours and greys), or `none`.
    mirror
        Every image is also trained as its mirror image, which doubles the images of a step.
    mean, std
        Per channel, in units of pixel / 255; vectors: one value for all features or one for each.
    gap
        When `new_task` is never called, unseen classes that arrive after this many batches without
        any mark a boundary.
    engine
        `auto` (a CUDA graph on a GPU), `eager` or `graph`.
    precision
        Of the network's arithmetic: `fp32`, or `bf16` by autocast.
    """

    net: str | nn.Module = "auto"
    head: Literal["trained", "frozen"] = "trained"
    optimizer: optimise.Kind = "adam"
    lr: float = 1e-3
    weight_decay: float = 1e-4
    augment: Augment = "crop-grey"
    mirror: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    gap: int = 10
    seed: int = 0
    device: str = "auto"
    engine: engine.Kind = "auto"
    precision: Precision = "fp32"

    keeps: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()
    presets: ClassVar[dict[str, Preset]] = {}
    exempt: ClassVar[dict[str, str]] = {}
    capturable: ClassVar[bool] = True
    trains_to_score: ClassVar[bool] = False

    steps: int = field(init=False, repr=False, default=0)
    book: ClassBook = field(init=False, repr=False)
    where: torch.device = field(init=False, repr=False)
    model: Classifier = field(init=False, repr=False)
    views: Views = field(init=False, repr=False)
    seen: Tensor = field(init=False, repr=False)
    new: Tensor = field(init=False, repr=False)
    generators: dict[str, torch.Generator] = field(init=False, repr=False)
    finished: bool = field(init=False, repr=False, default=False)
    spent: dict[str, Images] = field(init=False, repr=False, default_factory=dict)

    # ---- what a method writes

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Makes the parts that the method keeps, once the shape of a sample is known."""

    def make_head(self, features: int) -> Head:
        return Head(features, FIRST_CAPACITY, self.generators["initialisation"])

    def modules(self, features: int) -> dict[str, nn.Module]:
        """Modules that train beside backbone and head, by the name they have in `self.model`."""
        return {}

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> Step:
        """One step on raw samples and rows, on the device."""

    def on_task_end(self) -> None:
        """What the method does when a task has ended, before it is scored; may train."""

    def get_ready(self) -> None:
        """What has to be computed before scores can be given, once for all samples; may train."""

    def logits(self, inputs: Tensor) -> Tensor:
        """Scores of normalised inputs over the head's capacity; the network is evaluating."""
        logits: Tensor = self.model(inputs)
        return logits

    @abstractmethod
    def cost(self, batch: int) -> Images:
        """The cost of a step on a stream batch of this size."""

    # ---- the front door

    def learn(self, x: Any, y: Any) -> Step:
        """Learns a batch: images as uint8 (n, c, h, w), or float vectors (n, d); whole labels."""
        samples = inputs.as_samples(x)
        labels = inputs.as_labels(y, len(samples))
        if not self.steps:
            self._start(tuple(samples.shape[1:]), samples.dtype)
        self._expect(samples)
        rows = self._admit(labels)
        step = self._engine.run(self.step, samples.to(self.where), rows)
        self.steps += 1
        return step

    def end_task(self) -> None:
        """Says that the running task is over, so that what a method does then is done before it is
        scored; `new_task` says it too."""
        if self.book.batches and not self.finished:
            self.finished = True
            self.on_task_end()

    def new_task(self) -> None:
        """Says that a new task begins; from the first call on boundaries are no longer inferred."""
        self.book.told = True
        self.end_task()
        if self.book.close_task():
            self._after_boundary()

    def scores(self, x: Any) -> Tensor:
        """Logits, one column for each of `classes`."""
        if not self.steps:
            raise NotFittedError(f"this {type(self).__name__} has learned nothing yet: call learn")
        samples = inputs.as_samples(x)
        self._expect(samples)
        self._get_ready()
        pieces = torch.split(samples, PREDICTION_BATCH[self.where.type])
        with torch.no_grad(), evaluating(self.model):
            logits = [self.logits(self.views.normalise(piece.to(self.where))) for piece in pieces]
        return torch.cat(logits)[:, : len(self.classes)]

    def predict(self, x: Any) -> Tensor:
        """The label of the highest score."""
        best = self.scores(x).argmax(dim=1)
        return torch.tensor(self.classes, device=self.where)[best]

    @property
    def classes(self) -> list[int]:
        """The labels seen so far, in order of arrival."""
        return list(self.book.labels)

    @property
    def task(self) -> int:
        """How many boundaries there have been."""
        return self.book.task

    @property
    def memory_bytes(self) -> int:
        """What the samples that are kept take, once the memory is full."""
        self._expect_prepared()
        parts = (getattr(self, name) for name in self.parts)
        return sum(part.bytes for part in parts)

    @property
    def capture_seconds(self) -> float:
        """How long capturing the step as a graph has taken so far."""
        return self._engine.capture_seconds if hasattr(self, "_engine") else 0.0

    @property
    def copies(self) -> int:
        """How often a step trains each sample: twice if it is mirrored, which vectors are not."""
        return self.views.copies if hasattr(self, "views") else 1 + self.mirror

    # ---- what a step is made of

    def stream(self, x: Tensor, y: Tensor) -> Samples:
        """The stream batch: samples that all count."""
        return Samples(x, y, torch.ones_like(y, dtype=torch.float32))

    def forward(self, samples: Samples, pieces: Sequence[int] | None = None) -> Output:
        """Logits of the views of some samples, from one forward of all (one set of BatchNorm
        statistics), or from a forward for each of consecutive pieces of these sizes."""
        if pieces is None:
            return self.output(self.model.train_forward(samples.x, self.views), samples)
        views = self.views(samples.x)
        logits = [
            self._by_copy(self.model.train_forward(view)) for view in self._cut(views, pieces)
        ]
        return self.output(torch.cat(logits, dim=1).flatten(0, 1), samples)

    def output(self, logits: Tensor, samples: Samples) -> Output:
        """Logits of the views of some samples, with their rows and weights."""
        copies = self.views.copies
        if copies == 1:
            return Output(logits, samples.y, samples.weight)
        return Output(logits, samples.y.repeat(copies), samples.weight.repeat(copies))

    def cut(self, output: Output, *sizes: int) -> list[Output]:
        """The outputs of consecutive pieces of the samples, their mirror images included."""
        parts = (self._cut(part, sizes) for part in output)
        return [Output(*piece) for piece in zip(*parts, strict=True)]

    def per_sample(self, values: Tensor) -> Tensor:
        """The mean over the views of each sample."""
        return values if self.views.copies == 1 else self._by_copy(values).mean(dim=0)

    def _by_copy(self, rows: Tensor) -> Tensor:
        return rows.view(self.views.copies, -1, *rows.shape[1:])

    def _cut(self, rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        parts = torch.split(self._by_copy(rows), list(sizes), dim=1)
        return [part.flatten(0, 1) for part in parts]

    @property
    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def descend(self, loss: Tensor, meanwhile: Callable[[], None] = lambda: None) -> None:
        """One optimiser step; rows of the head that are spare or frozen stay where they are. What
        is done `meanwhile`, beside the optimiser in a captured step, must leave the network be."""
        for parameter in self.trained:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        at_once(loss, lambda _: meanwhile(), lambda _: self._update())

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Of every trained parameter; zeros where the loss does not reach."""
        found = torch.autograd.grad(loss, self.trained, allow_unused=True, materialize_grads=True)
        return list(found)

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """One optimiser step along these gradients, as `descend` makes it. Fused optimisers read
        memory in order, so a gradient must lie there as its parameter does."""
        for parameter, gradient in zip(self.trained, gradients, strict=True):
            alike = gradient.stride() == parameter.stride()
            parameter.grad = gradient if alike else torch.empty_like(parameter).copy_(gradient)
        self._update()

    def _update(self) -> None:
        self._optimizer.step()
        self.model.head.restore()

    def spend(self, purpose: Literal["task ends", "scores"], passes: Images) -> None:
        """Counts images that went through the network outside of steps."""
        before = self.spent.get(purpose, Images(0))
        total = Images(before.trained + passes.trained, before.scored + passes.scored)
        self.spent[purpose] = total

    # ---- configuration

    def __post_init__(self) -> None:
        self.make_plain()
        self.check_types()
        self.check_settings()
        self.book = ClassBook(self.gap)
        self._fresh = False
        self._ready_at: tuple[int, int, bool] | None = None

    def check_settings(self) -> None:
        self.require("lr", self.lr > 0, "positive")
        self.require("weight_decay", self.weight_decay >= 0, "zero or more")
        self.require("gap", self.gap >= 1, "at least 1")
        self.require("std", self.std is None or min(self.std, default=0) > 0, "positive")
        same = (self.mean is None) == (self.std is None)
        self.require("mean", same, "given together with std")

    # ---- saving

    def save(self, path: str | Path) -> None:
        """Writes the learner; `onepass.open` reads it and goes on, bit for bit."""
        if "key" not in vars(type(self)):
            raise InputError(
                f"{type(self).__name__} cannot be saved: a file names its method, and this class "
                "has no name of its own; give it one with @method"
            )
        files.write_checkpoint(Path(path), self.payload())

    def payload(self) -> dict[str, Any]:
        """What a file must hold to make this learner again: plain values and tensors."""
        params = {
            name: None if isinstance(value, nn.Module) else value  # files hold no code
            for name, value in self.get_params().items()
        }
        spent = {purpose: list(passes) for purpose, passes in self.spent.items()}
        return {
            "method": self.key,
            "settings": params,
            "state": self.state_dict(),
            "spent": spent,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning changes."""
        if not self.steps:
            return {"steps": 0, "book": self.book.state_dict()}
        parts = {name: self._part(name).state_dict() for name in self.parts}
        return {
            "steps": self.steps,
            "book": self.book.state_dict(),
            "finished": self.finished,
            "new": self.new.cpu().clone(),
            "shape": list(self._shape),
            "dtype": str(self._dtype).removeprefix("torch."),
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": optimise.state_of(self._optimizer, self.trained),
            "parts": {name: part for name, part in parts.items() if part},
            "generators": {
                name: {"device": rng.device.type, "state": rng.get_state()}
                for name, rng in self.generators.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the saved learner was; this one must have learned nothing yet."""
        if self.steps:
            raise CheckpointError("a state can only be loaded into a learner that is new")
        self.book = ClassBook.from_state(state["book"])
        if not state["steps"]:
            return
        self.prepare(tuple(state["shape"]), DTYPES[state["dtype"]])
        self._add_rows(0)
        self.new.copy_(state["new"])
        self._classes_changed()
        self.model.load_state_dict(state["model"])
        self.model.head.remember()
        optimise.load_state(self._optimizer, self.trained, state["optimizer"])
        for name in self.parts:
            self._part(name).load_state_dict(state["parts"].get(name, {}))
        self._load_generators(state["generators"], state["steps"])
        self.steps = state["steps"]
        self.finished = state["finished"]

    def params_sha256(self) -> str:
        """A fingerprint of names, dtypes and bytes of the network's parameters and buffers."""
        self._expect_prepared()
        return files.sha256(dict(self.model.state_dict()))

    def state_sha256(self) -> str:
        """The same over everything that learning changes: memory, optimiser, generators too."""
        return files.sha256(self.state_dict())

    # ---- behind the door

    def _start(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Before the first step, and again if that one failed."""
        if not self._fresh:
            self.prepare(shape, dtype)
        self.book = ClassBook(self.gap, told=self.book.told)
        self._fresh = False

    def prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Makes network, optimiser and parts for samples of this shape; `learn` does it where it
        was not done before."""
        self.where = devices.resolve(self.device)
        self._shape, self._dtype = shape, dtype
        self.generators = {
            "initialisation": generator(self.seed, "initialisation"),
            "draws": generator(self.seed, "draws", self.where),
            "augmentation": generator(self.seed, "augmentation", self.where),
        }
        self.views = Views(
            shape,
            mean=self.mean,
            std=self.std,
            augment=self.augment,
            mirror=self.mirror,
            rng=self.generators["augmentation"],
        )
        initial = self.generators["initialisation"]
        body = backbone(self.net, shape, initial).to(self.where)
        example = self.views.normalise(torch.zeros(1, *shape, dtype=dtype, device=self.where))
        features = feature_count(body, example)
        head = self.make_head(features).to(self.where)
        self.model = Classifier(body, head, self.precision)
        for name, module in self.modules(features).items():
            self.model.add_module(name, module.to(self.where))
        if self.where.type == "cuda" and len(shape) == 3:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = optimise.make(
            self.optimizer, self.model.parameters(), self.lr, self.weight_decay
        )
        if self.precision == "bf16":
            compile_kernels(body)
        self.seen = torch.zeros(FIRST_CAPACITY, dtype=torch.bool, device=self.where)
        self.new, self.old = torch.zeros_like(self.seen), torch.zeros_like(self.seen)
        self._engine = engine.make(
            self.engine, self.capturable, self.where, self.generators.values()
        )
        self.build(shape, dtype)
        self._fixed = frozenset(self.setting_names())
        self._fresh = True

    def _expect_prepared(self) -> None:
        if not self._fixed:
            raise NotFittedError(
                f"this {type(self).__name__} has not seen a sample yet: call learn, or prepare"
            )

    def _expect(self, samples: Tensor) -> None:
        if tuple(samples.shape[1:]) != self._shape or samples.dtype != self._dtype:
            raise InputError(
                f"x: this learner takes {_describe(self._shape, self._dtype)} samples, "
                f"got {_describe(tuple(samples.shape[1:]), samples.dtype)}"
            )

    def _admit(self, labels: Tensor) -> Tensor:
        """Rows of the labels; unseen classes get the next rows, after a boundary if one is due."""
        batch, known = labels.tolist(), len(self.book.labels)
        if self.book.boundary_due(batch):
            self.end_task()
        if self.book.enter(batch):
            self._after_boundary()
        if len(self.book.labels) > known:
            self._add_rows(known)
        rows = torch.tensor([self.book.row_of[label] for label in batch])
        if self.where.type == "cpu":
            return rows
        return rows.pin_memory().to(self.where, non_blocking=True)  # without waiting for the GPU

    def _get_ready(self) -> None:
        """Once for each state of the learner."""
        now = (self.steps, self.task, self.finished)
        if self._ready_at != now:
            self.get_ready()
            self._ready_at = now

    def _after_boundary(self) -> None:
        self.finished = False
        self.new.zero_()
        if self.head == "frozen":
            self.model.head.hold()
        for name in self.parts:
            self._part(name).new_task()
        self._classes_changed()

    def _add_rows(self, first: int) -> None:
        """Rows from `first` up to the number of classes start to train."""
        while len(self.classes) > self.model.head.capacity:
            self._grow(2 * self.model.head.capacity)
        born = slice(first, len(self.classes))
        self.seen[born] = True
        self.new[born] = True
        head = self.model.head
        head.free[born] = not (self.head == "frozen" and self.task)
        for parameter in head.trained:
            optimise.forget_rows(self._optimizer, parameter, born)
        self._classes_changed()

    def _classes_changed(self) -> None:
        torch.logical_and(self.seen, ~self.new, out=self.old)
        for name in self.parts:
            self._part(name).classes_are(self.seen, self.new)

    def _grow(self, capacity: int) -> None:
        head = self.model.head
        before, extra = head.trained, capacity - head.capacity
        head.grow(capacity, self.generators["initialisation"])
        for old, new in zip(before, head.trained, strict=True):
            optimise.replace(self._optimizer, old, new)
        self._engine.reset()
        self.seen = optimise.pad_rows(self.seen, extra)
        self.new = optimise.pad_rows(self.new, extra)
        self.old = optimise.pad_rows(self.old, extra)
        for name in self.parts:
            self._part(name).grow(capacity)

    def _part(self, name: str) -> Part:
        part: Part = getattr(self, name)
        return part

    def _load_generators(self, saved: dict[str, Any], steps: int) -> None:
        for name, rng in self.generators.items():
            entry = saved[name]
            if entry["device"] == rng.device.type:
                rng.set_state(entry["state"])
            else:  # another kind of device: its numbers cannot be continued, only begun anew
                rng.manual_seed(generator(self.seed, f"{name} after {steps}").initial_seed())


def _describe(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
