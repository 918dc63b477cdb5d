"""What trains: network, optimiser, engine, generators, and how they grow with the classes.

A learner makes one trainer when it knows the shape of a sample; until then it is not prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from onepass.base import devices
from onepass.base.errors import CheckpointError, TrainingError
from onepass.base.parts import ImageCount, Output, Samples, Show, StatefulPart, Step, not_shown
from onepass.base.seeds import generator
from onepass.functional.views import Augment, Views, can_be_captured
from onepass.learning import execution
from onepass.learning.execution import StepFunction
from onepass.learning.network_copies import Rule
from onepass.learning.predictor import PREDICTION_BATCH
from onepass.learning.self_distillation import SelfDistillation
from onepass.nets import (
    Aside,
    Classifier,
    Head,
    Precision,
    backbone,
    compile_kernels,
    evaluating,
    feature_count,
    optimisers,
    preprocessing,
    refresh,
    settle,
    tell_of_lone_sample,
)
from onepass.nets.fast import parallel

FIRST_CAPACITY = 16
Generators = dict[str, torch.Generator]


@dataclass(kw_only=True, frozen=True, eq=False)
class Training:
    """The settings that decide how a network is trained; `onepass.Learner` has and explains them.

    They are a record of their own: a trainer that knew its learner would be freed, with all that it
    has on a GPU, only when Python looks for garbage."""

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
        return cls(**{setting.name: getattr(learner, setting.name) for setting in fields(cls)})


def linear_head(features: int, rng: torch.Generator) -> Head:
    return Head(features, FIRST_CAPACITY, rng)


class Mark(NamedTuple):
    """Where generators, the network's statistics and parts with a few numbers were: what a step may
    move before the optimiser does."""

    generators: list[Tensor]
    statistics: list[Tensor]
    parts: list[dict[str, Tensor]]


def no_modules(features: int, rng: torch.Generator) -> dict[str, nn.Module]:
    return {}


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class Trainer:
    """A network of these settings for samples of this shape, and all that moves it.

    Parameters
    ----------
    make_head, extra_modules
        Make the head, and modules that train beside it, for so many features.
    capturable
        Whether the steps that it will run can be captured as a CUDA graph.
    rngs
        Generators for `initialisation`, `draws` and `augmentation`; made from the seed if not
        given.
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
        self.torch_device = devices.resolve(settings.device)
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
        self.optimizer = optimisers.make(
            settings.optimizer,
            self.model.parameters(),
            settings.lr,
            settings.weight_decay,
            rows=self.model.head.trainable,
        )
        generators = dict.fromkeys(self.rngs.values())  # one may serve two purposes
        capturable = capturable and can_be_captured(settings.augment)
        self._engine = execution.make(settings.engine, capturable, self.torch_device, generators)
        self.trainable = _trainable(self.model)
        self._twin = evaluating(self.model)
        self.aside = Aside()
        # what lets a batch into a memory, and the tensors that it reads
        self._waiting: list[tuple[Callable[[], None], tuple[Tensor, ...]]] = []
        self.begins = self.lets_in = True  # whether the step is the first, the last on its batch
        self.unfinished = False  # whether something that cannot be undone has begun and not ended
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
        # rows of the head (C): with a class, with one that is new since the boundary, the others
        self.seen = torch.zeros(
            self.model.head.capacity, dtype=torch.bool, device=self.torch_device
        )
        self.new, self.old = torch.zeros_like(self.seen), torch.zeros_like(self.seen)
        self.log_seen = self.seen.float().log()

    def tell(self, parts: dict[str, StatefulPart]) -> None:
        """Takes the parts of a learner, which are told and saved from now on, and makes averages of
        the network."""
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
        settle(body)
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

    # ---- what a step asks for

    def output(self, logits: Tensor, batch: Samples, show: Show = not_shown) -> Output:
        """Logits of views of a batch, with the batch's rows and weights for each view."""
        times = self.views.per_sample
        if times == 1:
            return Output(logits, batch.y, batch.weight, show)
        return Output(logits, batch.y.repeat(times), batch.weight.repeat(times), show)

    def apart(self, output: Output, *batches: Samples) -> list[Output]:
        """What was said of several batches that were forwarded as one, batch by batch: a step
        reports the stream first, then what it replayed."""
        pieces = self.views.cut(output.logits, [len(batch.y) for batch in batches])
        return [self.output(piece, batch) for piece, batch in zip(pieces, batches, strict=True)]

    def note(self, outputs: Sequence[Output], batches: Sequence[Samples]) -> None:
        """Notes what one forward said of some batches: the average will be asked about them too.
        For steps that do without `forward`."""
        self.distillation.note(outputs, batches)

    @torch.no_grad()
    def features_of(self, x: Tensor, network: Classifier | None = None) -> Tensor:
        """Features (n, features) of raw samples as they are, in evaluation mode, in fp32; those of
        the network that trains, or of another one."""
        evaluator = self.evaluator if network is None else network
        pieces = torch.split(x, PREDICTION_BATCH[self.torch_device.type])
        found = [evaluator.features(self.views.normalise(piece)).float() for piece in pieces]
        return torch.cat(found)

    def spend(self, purpose: Literal["task ends", "scores"], images: ImageCount) -> None:
        """Counts images that went through a network outside of steps."""
        self.image_counts[purpose] = self.image_counts.get(purpose, ImageCount(0)) + images

    # ---- steps

    @property
    def evaluator(self) -> Classifier:
        """The network as it is now, in evaluation mode; training does not notice who asks it."""
        refresh(self._twin, self.model)
        return self._twin

    @property
    def answering(self) -> Classifier:
        """The network that predicts, in evaluation mode: the average, where there is one."""
        averaged = self.distillation.averaged
        return self.evaluator if averaged is None else averaged.model

    @property
    def capture_seconds(self) -> float:
        """How long capturing steps as graphs has taken so far."""
        return self._engine.capture_seconds

    def expect_another_step(self) -> None:
        """The step may do other things from here on: a graph of the one before is of no use."""
        self._engine.reset(other_step=True)

    def run(self, step: StepFunction, x: Tensor, y: Tensor) -> Step:
        """Executes a step, eagerly or as a graph, `repeats` times in a row; only the last one lets
        the batch into the memory. If it fails before the optimiser moves the network, generators,
        statistics and parts are put back; if later, the trainer stays `unfinished`."""

        def whole(x: Tensor, y: Tensor) -> Step:
            # a capture moves nothing
            before = None if parallel.capturing(x) else self._mark()
            times = self.settings.repeats
            try:
                for turn in range(times):
                    self.begins, self.lets_in = turn == 0, turn == times - 1
                    done = self.once(step, x, y)
            except BaseException:
                self._waiting.clear()
                self.aside.forget()
                if before is not None and not self.unfinished:
                    self._back_to(before)
                raise
            finally:
                self.begins = self.lets_in = True
            return done

        try:
            with devices.no_subnormals():
                return self._engine.run(whole, x, y, replaying=self._begin_to_move)
        except ValueError as problem:
            tell_of_lone_sample(problem)
            raise

    def once(self, step: StepFunction, x: Tensor, y: Tensor) -> Step:
        """Makes one step, of whose terms the lesson of the average is one."""
        self.distillation.begin()
        done = self.distillation.reported(step(x, y))
        self.finish()
        return done

    def _begin_to_move(self) -> None:
        self.unfinished = True

    def let_in(self, work: Callable[[], None], *used: Tensor) -> None:
        """Does the work, which lets a batch into a memory and reads the tensors `used`, by the end
        of the next `descend` or of the step; unless the step is to be repeated."""
        if self.lets_in:
            self._waiting.append((work, used))

    def finish(self) -> None:
        """Lets in what waits, and waits for what is being let in."""
        for work, _ in self._waiting:
            work()
        self._waiting.clear()
        self.aside.wait()

    def _let_in_aside(self) -> None:
        """A captured step lets in what waits while it computes gradients: nothing in it fails."""
        if self._waiting and parallel.capturing(self._waiting[0][1][0]):
            for work, used in self._waiting:
                self.aside.start(work, *used)
            self._waiting.clear()

    def _mark(self) -> Mark:
        return Mark(
            [rng.get_state() for rng in self._drawing],
            [getattr(module, name).clone() for module, name in self._statistics],
            [part.mark() for part in self.parts.values()],
        )

    @torch.no_grad()
    def _back_to(self, mark: Mark) -> None:
        for rng, state in zip(self._drawing, mark.generators, strict=True):
            rng.set_state(state)
        for (module, name), value in zip(self._statistics, mark.statistics, strict=True):
            getattr(module, name).copy_(value)
        for part, numbers in zip(self.parts.values(), mark.parts, strict=True):
            part.back_to(numbers)

    def optimise(self, loss: Tensor, largest_gradient: float | None = None) -> None:
        """Makes one optimiser step along the gradient of the loss and of the average's lesson; the
        norm of all gradients is cut to `largest_gradient`."""
        loss = self.distillation.add_lesson(loss, self)
        self._let_in_aside()
        for parameter in self.trainable:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        if largest_gradient is not None:
            nn.utils.clip_grad_norm_(self.trainable, largest_gradient)
        self._update()

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Returns those of the loss and of the average's lesson by every trainable parameter; zeros
        where they do not reach."""
        loss = self.distillation.add_lesson(loss, self)
        return list(
            torch.autograd.grad(loss, self.trainable, allow_unused=True, materialize_grads=True)
        )

    def descend_along(self, gradients: Sequence[Tensor]) -> None:
        """One optimiser step along these gradients. Fused optimisers read memory in order, so a
        gradient must lie there as its parameter does."""
        self._let_in_aside()
        for parameter, gradient in zip(self.trainable, gradients, strict=True):
            alike = gradient.stride() == parameter.stride()
            parameter.grad = gradient if alike else torch.empty_like(parameter).copy_(gradient)
        self._update()

    def _update(self) -> None:
        if not parallel.capturing(self.seen):
            self._begin_to_move()
        try:
            self.optimizer.step()
        except (TypeError, RuntimeError) as problem:  # such as moments for some parameters only
            raise TrainingError(f"the optimiser cannot go on: {problem}") from problem
        self.model.head.restore()  # rows that are spare or frozen stay where they are
        for part in self.parts.values():
            part.follow()
        self.finish()

    # ---- classes

    @contextmanager
    def undoing_rows(self, first: int, end: int) -> Iterator[None]:
        """Takes back the rows that are added here if it fails before the network has moved; the
        head keeps the room that is made for them first."""
        self.make_room(end)
        head = self.model.head
        states = [self.optimizer.state.get(one, {}) for one in head.trainable]
        rows = [head.free, *(value for state in states for value in state.values() if value.ndim)]
        before = [one.clone() for one in rows]
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
        """The head has at least so many rows."""
        while rows > self.model.head.capacity:
            self._begin_to_move()
            self._grow(2 * self.model.head.capacity)
            self.unfinished = False

    def add_rows(self, first: int, end: int, *, train: bool = True) -> None:
        """Rows from `first` up to `end` have a class from now on; they train, or stay at birth."""
        self.make_room(end)
        born = slice(first, end)
        self.seen[born] = True
        self.new[born] = True
        head = self.model.head
        head.free[born] = train
        for parameter in head.trainable:
            optimisers.forget_rows(self.optimizer, parameter, born)
        self.classes_changed()

    def new_task(self) -> None:
        """What was new is old from here on; a frozen head stays as it is now."""
        self.new.zero_()
        if self.settings.head == "frozen":
            self.model.head.hold()
        for part in self.parts.values():
            part.new_task()
        self.classes_changed()

    def classes_changed(self) -> None:
        torch.logical_and(self.seen, ~self.new, out=self.old)
        self.log_seen.copy_(self.seen.log())
        for part in self.parts.values():
            part.classes_are(self.seen, self.new)

    def _grow(self, capacity: int) -> None:
        head = self.model.head
        before, extra = head.trainable, capacity - head.capacity
        head.grow(capacity, self.rngs["initialisation"])
        for old, new in zip(before, head.trainable, strict=True):
            optimisers.replace(self.optimizer, old, new)
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
            "optimizer": optimisers.state_of(self.optimizer, self.trainable),
            "parts": {name: part for name, part in parts.items() if part},
            "generators": {
                name: {"device": rng.device.type, "state": rng.get_state()}
                for name, rng in self.rngs.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any], steps: int) -> None:
        """Goes on where another trainer of these settings was, after so many steps; this one has as
        many rows."""
        self.new.copy_(state["new"])
        self.classes_changed()
        self.model.load_state_dict(state["model"])
        self.model.head.remember()
        optimisers.load_state(self.optimizer, self.trainable, state["optimizer"])
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
                    raise CheckpointError(f"generators.{name} is none: {problem}") from None
            else:  # another kind of device: its numbers cannot be continued, only begun anew
                seed = generator(self.settings.seed, f"{name} after {steps}").initial_seed()
                rng.manual_seed(seed)
