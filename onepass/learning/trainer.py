"""The trainer: network, optimiser, engine and generators, and how they grow with the classes.

A learner makes its trainer when it knows the shape of a sample. Until then it is not prepared.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from onepass.base import devices, ram
from onepass.base.errors import CheckpointError, TrainingError
from onepass.base.parts import (
    ImageCount,
    MakeViews,
    Output,
    Samples,
    StatefulPart,
    Step,
    views_not_kept,
)
from onepass.base.seeds import generator
from onepass.functional.views import Augment, Views, can_be_captured
from onepass.learning import execution
from onepass.learning.execution import StepFunction
from onepass.learning.network_copies import Rule
from onepass.learning.predictor import prediction_batch
from onepass.learning.self_distillation import SelfDistillation
from onepass.nets import (
    FIRST_CAPACITY,
    Classifier,
    Head,
    Precision,
    SideStream,
    backbone,
    compile_kernels,
    explain_single_sample,
    feature_count,
    freeze_untrained_norms,
    optimisers,
    pass_bytes,
    preprocessing,
    retie,
    tied_eval_copy,
)
from onepass.nets.fast import parallel
from onepass.nets.fast.vmap import in_vmap

Generators = dict[str, torch.Generator]
MOST_HELD = 8192  # bytes per value of its inputs that a forward pass may take; ResNet18: 1500


@dataclass(kw_only=True, frozen=True, eq=False)
class Training:
    """The settings of a learner that a trainer needs; `onepass.NetworkLearner` documents them.

    The trainer gets this copy and not the learner itself. A reference to the learner would be a
    cycle, and its GPU memory would be freed only by Python's garbage collector."""

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
    distil: float = 0.0
    distil_from: Rule | None = None
    distil_temperature: float = 4.0
    distil_raw: bool = False
    repeats: int = 1

    @classmethod
    def of(cls, learner: object) -> Training:
        """Returns the training settings of a learner."""
        return cls(**{setting.name: getattr(learner, setting.name) for setting in fields(cls)})


def linear_head(features: int, rng: torch.Generator) -> Head:
    """Returns a linear class head, the default of methods."""
    return Head(features, FIRST_CAPACITY, rng)


class Backup(NamedTuple):
    """A backup of what a step may change before the optimiser's update: generators, the network's
    buffers and the small tensors of parts."""

    generators: list[Tensor]
    statistics: list[Tensor]
    parts: list[dict[str, Tensor]]


def no_modules(features: int, rng: torch.Generator) -> dict[str, nn.Module]:
    """Returns no further modules, the default of methods."""
    return {}


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class Trainer:
    """A network for samples of one shape, with everything that trains it.

    Parameters
    ----------
    make_head, extra_modules
        Functions of the number of features and a generator. They return the head, and further
        modules to train, by name.
    capturable
        Whether its steps can be captured as a CUDA graph.
    rngs
        Generators named `initialisation`, `draws` and `augmentation`. By default they are made from
        the seed.
    """

    def __init__(
        self,
        settings: Training,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        make_head: Callable[[int, torch.Generator], Head] = linear_head,
        extra_modules: Callable[[int, torch.Generator], dict[str, nn.Module]] = no_modules,
        capturable: bool = True,
        rngs: Generators | None = None,
    ) -> None:
        self.settings, self.shape, self.dtype = settings, shape, dtype
        self.torch_device = devices.resolve_device(settings.device)
        self.rngs = rngs or self._generators(settings.seed)
        self.views = Views(
            shape,
            mean=settings.mean,
            std=settings.std,
            augment=settings.augment,
            mirror=settings.mirror,
            rng=self.rngs["augmentation"],
            preprocess=preprocessing(settings.net, shape),
        )
        self.model = self._network(make_head, extra_modules)
        self.optimizer = optimisers.make_optimiser(
            settings.optimizer,
            self.model.parameters(),
            settings.lr,
            settings.weight_decay,
            rows=self.model.head.trainable,
        )
        generators = dict.fromkeys(self.rngs.values())  # list once one with two names
        capturable = capturable and can_be_captured(settings.augment)
        self._engine = execution.make_engine(
            settings.engine, capturable, self.torch_device, generators
        )
        self.trainable = _trainable(self.model)
        self._tied_model = tied_eval_copy(self.model)
        self.side_stream = SideStream()
        # calls that add a batch to a memory, each with the tensors that it reads
        self._pending: list[tuple[Callable[[], None], tuple[Tensor, ...]]] = []
        # whether the current step is the first of the repeats on its batch, and the last
        self.first_repeat = self.last_repeat = True
        self.unfinished = False  # whether a change that cannot be undone has begun and not ended
        # whether a step is known to fit; without RAM a GPU raises an error, but a host kills us
        self.fits = self.torch_device.type != "cpu"
        # generators that a step may advance; `initialisation` draws only when the head grows
        self._drawing = list(dict.fromkeys([self.rngs["draws"], self.rngs["augmentation"]]))
        self._statistics = [
            (module, name)
            for module in self.model.modules()
            for name, _ in module.named_buffers(recurse=False)
            if module is not self.model.head
        ]
        self.distillation = SelfDistillation(settings)
        self.image_counts: dict[str, ImageCount] = {}
        self.parts: dict[str, StatefulPart] = {}
        # masks (C) of the head's rows: those with a class, with a new class, with an old class
        self.seen = torch.zeros(
            self.model.head.capacity, dtype=torch.bool, device=self.torch_device
        )
        self.new, self.old = torch.zeros_like(self.seen), torch.zeros_like(self.seen)
        self.log_seen = self.seen.float().log()

    def attach_parts(self, parts: dict[str, StatefulPart]) -> None:
        """Takes the parts of a learner and adds the moving averages to them. From now on all are
        saved, and notified of classes, tasks and optimiser steps."""
        self.parts = {**self.distillation.make_averages(self), **parts}

    def _generators(self, seed: int) -> Generators:
        return {
            "initialisation": generator(seed, "initialisation"),
            "draws": generator(seed, "draws", self.torch_device),
            "augmentation": generator(seed, "augmentation", self.torch_device),
        }

    def _network(
        self,
        make_head: Callable[[int, torch.Generator], Head],
        extra_modules: Callable[[int, torch.Generator], dict[str, nn.Module]],
    ) -> Classifier:
        settings, rng = self.settings, self.rngs["initialisation"]
        body = backbone(settings.net, self.shape, rng).to(self.torch_device)
        freeze_untrained_norms(body)
        blank = torch.zeros(1, *self.shape, dtype=self.dtype, device=self.torch_device)
        features = feature_count(body, self.views.normalise(blank))
        model = Classifier(body, make_head(features, rng).to(self.torch_device), settings.precision)
        for name, module in extra_modules(features, rng).items():
            model.add_module(name, module.to(self.torch_device))
        if self.torch_device.type == "cuda" and len(self.shape) == 3:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if settings.precision == "bf16":
            compile_kernels(body)
        return model

    # ---- helpers for a step

    def output(self, logits: Tensor, batch: Samples, show: MakeViews = views_not_kept) -> Output:
        """Returns the output of a batch: the logits of its views, with the row and weight of each
        view. `show` returns the views themselves, if a teacher needs them."""
        times = self.views.per_sample
        if times == 1:
            return Output(logits, batch.y, batch.weight, show)
        return Output(logits, batch.y.repeat(times), batch.weight.repeat(times), show)

    def split_output(self, output: Output, *batches: Samples) -> list[Output]:
        """Returns the output of each batch, from the output of batches that shared a forward pass.
        A step can then report the stream batch and the replayed one separately."""
        pieces = self.views.cut(output.logits, [len(batch.y) for batch in batches])
        return [self.output(piece, batch) for piece, batch in zip(pieces, batches, strict=True)]

    def record_forward(self, outputs: Sequence[Output], batches: Sequence[Samples]) -> None:
        """Registers a forward pass for distillation: the teacher will be evaluated on its views.
        Only steps that do not use `NetworkLearner.forward` have to call this."""
        self.distillation.record_forward(outputs, batches)

    @torch.no_grad()
    def features_of(self, x: Tensor, network: Classifier | None = None) -> Tensor:
        """Returns fp32 features (n, features) of raw samples without augmentation. They are those
        of the trained network in evaluation mode, unless another network is given."""
        model = self.eval_model if network is None else network
        pieces = torch.split(x, prediction_batch(self.torch_device, self.shape))
        found = [model.features(self.views.normalise(piece)).float() for piece in pieces]
        return torch.cat(found)

    def count_images(self, purpose: Literal["task ends", "scores"], images: ImageCount) -> None:
        """Adds images to the count of a purpose: images that passed through a network outside of a
        step."""
        self.image_counts[purpose] = self.image_counts.get(purpose, ImageCount(0)) + images

    # ---- steps

    @property
    def eval_model(self) -> Classifier:
        """The current network in evaluation mode, as a tied copy: it shares the trained network's
        tensors, and its use changes none of them."""
        retie(self._tied_model, self.model)
        return self._tied_model

    @property
    def predicting_model(self) -> Classifier:
        """The network that predicts, in evaluation mode: the moving average if there is one."""
        averaged = self.distillation.averaged
        return self.eval_model if averaged is None else averaged.model

    @property
    def capture_seconds(self) -> float:
        """The seconds spent on capturing steps as CUDA graphs."""
        return self._engine.capture_seconds

    def expect_changed_step(self) -> None:
        """Drops the captured step, because the step may do something else from now on."""
        self._engine.reset(other_step=True)

    def run(self, step: StepFunction, x: Tensor, y: Tensor) -> Step:
        """Runs a step `repeats` times, eagerly or as a CUDA graph, and returns the last report. The
        last repeat stores the batch in the memory. If a step fails before the first optimiser's
        update, generators, statistics and parts are restored. If it fails later, the trainer stays
        `unfinished`."""

        def all_repeats(x: Tensor, y: Tensor) -> Step:
            # capturing records kernels and changes no tensor, so it needs no backup
            before = None if parallel.is_capturing(x) else self._back_up()
            times = self.settings.repeats
            try:
                for repeat in range(times):
                    self.first_repeat, self.last_repeat = repeat == 0, repeat == times - 1
                    done = self.run_once(step, x, y)
            except BaseException:
                self._pending.clear()
                self.side_stream.drop()
                if before is not None and not self.unfinished:
                    self._undo(before)
                raise
            finally:
                self.first_repeat = self.last_repeat = True
            return done

        room = nullcontext() if self.fits else self._refusing_large_passes()
        with devices.no_subnormals(), explain_single_sample(), room:
            return self._engine.run(all_repeats, x, y, replaying=self._mark_unfinished)

    @contextmanager
    def _refusing_large_passes(self) -> Iterator[None]:
        """Raises a MemoryError before a forward pass for which there is not enough RAM, in the
        steps up to the first one that trains the network. Each pass is compared with the RAM that
        those before it have left. Later steps need as much."""
        trained = False

        def expect_room(body: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            nonlocal trained
            x, trains = arguments[0], torch.is_grad_enabled()
            # a second repeat is not checked: the first has not given back all RAM that it reuses
            if self.first_repeat and devices.is_on_host(x) and not in_vmap(x):
                self.expect_room(x, self.model if trains else self._tied_model)
                trained = trained or trains

        with ExitStack() as hooks:
            for body in (self.model.body, self._tied_model.body):
                hooks.callback(body.register_forward_pre_hook(expect_room).remove)
            yield
        self.fits = trained

    def expect_room(self, x: Tensor, network: Classifier) -> None:
        """Raises a MemoryError if there is too little RAM for a forward pass of inputs x. With
        gradients enabled, the pass keeps what the backward pass needs."""
        free = ram.free_ram_bytes()
        if free is None or MOST_HELD * x.numel() <= free or not devices.is_on_host(x):
            return
        gc.collect()  # an earlier learner may not have been freed yet
        shape = "x".join(map(str, x.shape[1:]))
        need = pass_bytes(network, x)
        ram.expect_ram(need or 0, f"a forward pass of {len(x)} inputs of {shape}")

    def run_once(self, step: StepFunction, x: Tensor, y: Tensor) -> Step:
        """Makes one step and stores the batch that it kept. Returns its report, with the
        distillation loss among the terms."""
        self.distillation.begin()
        done = self.distillation.with_term(step(x, y))
        self.finish()
        return done

    def _mark_unfinished(self) -> None:
        self.unfinished = True

    def store_later(self, work: Callable[[], None], *used: Tensor) -> None:
        """Schedules `work`, which adds a batch to a memory and reads the tensors `used`. It runs in
        the next `descend` or at the end of the step. Does nothing unless this is the last repeat.
        """
        if self.last_repeat:
            self._pending.append((work, used))

    def finish(self) -> None:
        """Stores the pending batches, and makes the main stream wait for those that the side stream
        is storing."""
        for work, _ in self._pending:
            work()
        self._pending.clear()
        self.side_stream.wait()

    def _store_on_side_stream(self) -> None:
        """Stores the pending batches on a side stream, while the step computes gradients. An eager
        step may still fail and be undone, so only a captured step does this."""
        if self._pending and parallel.is_capturing(self._pending[0][1][0]):
            for work, used in self._pending:
                self.side_stream.start(work, *used)
            self._pending.clear()

    def _back_up(self) -> Backup:
        return Backup(
            [rng.get_state() for rng in self._drawing],
            [getattr(module, name).clone() for module, name in self._statistics],
            [part.mark() for part in self.parts.values()],
        )

    @torch.no_grad()
    def _undo(self, backup: Backup) -> None:
        for rng, state in zip(self._drawing, backup.generators, strict=True):
            rng.set_state(state)
        for (module, name), value in zip(self._statistics, backup.statistics, strict=True):
            getattr(module, name).copy_(value)
        for part, numbers in zip(self.parts.values(), backup.parts, strict=True):
            part.back_to(numbers)

    def optimise(self, loss: Tensor, largest_gradient: float | None = None) -> None:
        """Makes one optimiser step on the loss plus the distillation loss. `largest_gradient` is
        the largest norm of the whole gradient, above which it is scaled down."""
        loss = self.distillation.add_distillation(loss, self)
        self._store_on_side_stream()
        for parameter in self.trainable:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        if largest_gradient is not None:
            nn.utils.clip_grad_norm_(self.trainable, largest_gradient)
        self._update()

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Returns the gradient of the loss plus the distillation loss for each trainable parameter,
        zeros for those that the loss does not depend on."""
        loss = self.distillation.add_distillation(loss, self)
        return list(
            torch.autograd.grad(loss, self.trainable, allow_unused=True, materialize_grads=True)
        )

    def descend_along(self, gradients: Sequence[Tensor]) -> None:
        """Makes one optimiser step with these gradients. Fused optimisers require that a gradient
        has the strides of its parameter."""
        self._store_on_side_stream()
        for parameter, gradient in zip(self.trainable, gradients, strict=True):
            alike = gradient.stride() == parameter.stride()
            parameter.grad = gradient if alike else torch.empty_like(parameter).copy_(gradient)
        self._update()

    def _update(self) -> None:
        if not self.fits:
            ram.expect_ram(self.optimizer.moments_to_come, "the optimiser")
        if not parallel.is_capturing(self.seen):
            self._mark_unfinished()
        try:
            self.optimizer.step()
        except (TypeError, RuntimeError) as problem:
            # a kernel of all parameters fails, for example, if only some of them have moments
            raise TrainingError(f"the optimiser cannot go on: {problem}") from problem
        self.model.head.restore()  # spare and frozen rows do not move
        for part in self.parts.values():
            part.follow()
        self.finish()

    # ---- classes

    @contextmanager
    def undo_new_rows_if_failing(self, first: int, end: int) -> Iterator[None]:
        """Makes room for rows up to `end`. If the body fails before the optimiser's update, the
        rows from `first` on have no classes again, and parts are as before. The head keeps its new
        capacity."""
        self.make_room(end)
        head = self.model.head
        # the tensors by row of the head that assigning classes, or a method that gives new rows
        # their first values, changes in place
        states = [self.optimizer.state.get(parameter, {}) for parameter in head.trainable]
        rows = [head.free, *(parameter.detach() for parameter in head.trainable)]
        rows += [value for state in states for value in state.values() if value.ndim]
        before = [tensor.clone() for tensor in rows]
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        try:
            yield
        except BaseException:
            if not self.unfinished:
                self.seen[first:] = False
                self.new[first:] = False
                self.classes_changed()
                torch._foreach_copy_(rows, before)
                for name, part in self.parts.items():
                    part.load_state_dict(parts[name])
            raise

    def make_room(self, rows: int) -> None:
        """Doubles the head's capacity until it is at least this many rows."""
        while rows > self.model.head.capacity:
            self._mark_unfinished()
            self._grow(2 * self.model.head.capacity)
            self.unfinished = False

    def add_rows(self, first: int, end: int, *, train: bool = True) -> None:
        """Marks the rows from `first` up to, but not including, `end` as those of new classes. With
        `train` false they keep their initial values."""
        self.make_room(end)
        rows = slice(first, end)
        self.seen[rows] = True
        self.new[rows] = True
        head = self.model.head
        head.free[rows] = train
        for parameter in head.trainable:
            optimisers.reset_rows(self.optimizer, parameter, rows)
        self.classes_changed()

    def new_task(self) -> None:
        """Makes the new classes old and notifies the parts. If the setting `head` is `frozen`, the
        head trains no further."""
        self.new.zero_()
        if self.settings.head == "frozen":
            self.model.head.hold()
        for part in self.parts.values():
            part.new_task()
        self.classes_changed()

    def classes_changed(self) -> None:
        """Updates the mask of old classes, and gives the parts the masks."""
        torch.logical_and(self.seen, ~self.new, out=self.old)
        self.log_seen.copy_(self.seen.log())
        for part in self.parts.values():
            part.classes_are(self.seen, self.new)

    def _grow(self, capacity: int) -> None:
        head = self.model.head
        before, extra = head.trainable, capacity - head.capacity
        head.grow(capacity, self.rngs["initialisation"])
        for old, new in zip(before, head.trainable, strict=True):
            optimisers.replace_parameter(self.optimizer, old, new)
        self.trainable = _trainable(self.model)
        self._engine.reset()
        self.seen = optimisers.pad_rows(self.seen, extra)
        self.new = optimisers.pad_rows(self.new, extra)
        self.old = optimisers.pad_rows(self.old, extra)
        self.log_seen = self.seen.float().log()
        for part in self.parts.values():
            part.grow(capacity)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        return {
            "new": self.new.cpu().clone(),
            "shape": list(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."),
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": optimisers.optimiser_state(self.optimizer, self.trainable),
            "parts": {name: part for name, part in parts.items() if part},
            "generators": {
                name: {"device": rng.device.type, "state": rng.get_state()}
                for name, rng in self.rngs.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any], steps: int) -> None:
        """Loads the state of a trainer with the same settings and rows, as it was after `steps`
        steps."""
        self.new.copy_(state["new"])
        self.classes_changed()
        self.model.load_state_dict(state["model"])
        self.model.head.remember()
        optimisers.load_optimiser_state(self.optimizer, self.trainable, state["optimizer"])
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"].get(name, {}))
        self._load_generators(state["generators"], steps)

    def _load_generators(self, saved: dict[str, Any], steps: int) -> None:
        for name, rng in self.rngs.items():
            entry = saved[name]
            if entry["device"] == rng.device.type:
                try:
                    rng.set_state(entry["state"])
                except RuntimeError as problem:
                    raise CheckpointError(
                        f"generators.{name} is not a generator state: {problem}"
                    ) from None
            else:  # a generator of another kind of device cannot be resumed: seed a new one
                seed = generator(self.settings.seed, f"{name} after {steps}").initial_seed()
                rng.manual_seed(seed)
