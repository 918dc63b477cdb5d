"""The contract of every method: learn, predict, scores, snapshot, new_task, end_task, forget, save.

`Learner` is what all methods share: batches of samples with labels, classes and tasks, a lock,
settings, files. A method derives from `NetworkLearner` if it trains a network, or else from
`Learner` itself, and then it writes the hooks in the section "what a method writes".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from onepass.base import devices, inputs
from onepass.base.checksum import sha256
from onepass.base.errors import CheckpointError, InputError, NotFittedError, TrainingError
from onepass.base.locks import LearnerLock
from onepass.base.parts import ImageCount, Label, StatefulPart, Step
from onepass.base.settings import (
    Preset,
    constructor_call,
    convert_settings,
    expect_setting_name,
    expect_setting_types,
    format_setting,
    non_defaults,
    require,
    setting_names,
)
from onepass.base.text import html_table, short_value
from onepass.encoders.registry import canonical
from onepass.learning.checkpoint import file, validate
from onepass.learning.class_index import ClassIndex, Texts
from onepass.learning.encoding import Identity, Sampler, shared_encoder
from onepass.learning.memory_contents import MemoryContents, RemovalReport, contents_of
from onepass.learning.predictor import Predictor
from onepass.learning.traits import Traits


@dataclass(kw_only=True, eq=False)
class Learner(ABC):
    """A method of continual learning. Its constructor arguments are its settings.

    Settings do not change once learning has begun. NumPy numbers become Python's.

    Parameters
    ----------
    mean
        The value to subtract from each channel, in units of pixel / 255 or of the float image. For
        vectors: one value, or one per feature. Ignored if a network has its own preprocessing.
    std
        The value to divide by after that, in the same units.
    seed
        The seed of all that is random. Initialisation, draws and augmentation have a generator
        each.
    device
        `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1` for the second GPU, or `mps`.
    encoder
        A frozen encoder (`onepass list encoders`), or several joined by `+`. Batches are images of
        any size, paths or texts then, and the method learns their features, as vectors. A float
        array (n, d) is taken for features that were computed before. None: samples as they are.
    gap
        Batches without unseen classes after which an unseen class marks a task boundary. Ignored
        once `new_task` was called.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    seed: int = 0
    device: str = "auto"
    encoder: str | None = None
    gap: int = 10

    key: ClassVar[str] = ""  # the name of the method
    presets: ClassVar[dict[str, Preset]] = {}  # other settings by name, each with its source
    traits: ClassVar[Traits] = Traits()
    standardises_features: ClassVar[bool] = False  # whether it learns them with variance 1
    # keys of `_own_state`, which a saved state has beside those of every learner
    _state_keys: ClassVar[tuple[str, ...]] = ()

    # True while a change that cannot be undone is under way; no dataclass field, so that a
    # derived class may make it a property.
    _unfinished = False

    steps: int = field(init=False, default=0)
    class_index: ClassIndex = field(init=False)
    _task_ended: bool = field(init=False, default=False)
    _only_predicts: bool = field(init=False, default=False)  # it was loaded without its memory
    # identity of the encoder that the first features came from
    _encoder_identity: Identity | None = field(init=False, default=None)
    _names: dict[Label, str] = field(init=False, default_factory=dict)
    _lock: LearnerLock = field(init=False, default_factory=LearnerLock)

    # ---- what a method writes

    @property
    @abstractmethod
    def _prepared(self) -> bool:
        """True once the shape of a sample is known. From then on the settings are fixed. It is read
        while the constructor runs, too, and false then."""

    @abstractmethod
    def _prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Makes everything whose size depends on the samples. Raises an InputError for samples that
        the method cannot take, and is not prepared then."""

    @abstractmethod
    def _unprepare(self) -> None:
        """Drops everything that `_prepare` made, so that only settings are left."""

    @abstractmethod
    def _expect_samples(self, samples: Tensor) -> None:
        """Raises an InputError for samples that the method cannot learn: of another shape or dtype
        than those before, for example. It runs before `_prepare`, too."""

    @abstractmethod
    def _learn_batch(self, samples: Tensor, labels: list[Label]) -> Step:
        """Learns a valid batch and returns its report. Counts it in `steps`, enters its labels into
        `class_index`, after `_draw_boundary_before`. If it fails, it undoes what it can, or leaves
        the learner `_unfinished`."""

    @abstractmethod
    def _predictor(self) -> Predictor:
        """Returns a predictor of the current state, which shares its tensors. It calls
        `_expect_learned` first. What is costly in it should be cached until the learner changes."""

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """Returns what learning changes, besides steps, classes and tasks, as tensors and plain
        values: copies, under the names in `_state_keys`. Called after the first step only."""

    @abstractmethod
    def _restore(self, state: dict[str, Any], book: ClassIndex) -> None:
        """Prepares the learner, and loads a state with the keys of `_own_state` and the classes of
        `book`. Raises a CheckpointError for one that does not fit. The caller sets steps, classes
        and tasks."""

    def _parameters(self) -> dict[str, Any]:
        """Returns what `params_sha256` hashes: what decides predictions."""
        return self._own_state()

    def on_task_end(self) -> None:  # noqa: B027
        """Runs once at the end of each task: in `end_task` or before the next task's first batch.
        It may train."""

    def expect_healthy(self) -> None:  # noqa: B027
        """Raises a TrainingError if learning has diverged. Scoring, copying and saving call it,
        steps do not."""

    def images_per_batch(self, batch: int) -> ImageCount:
        """Returns the number of images processed for a stream batch of this size, when the memory
        is full and an old task exists: none without a network."""
        return ImageCount(0)

    @property
    def image_counts(self) -> dict[str, ImageCount]:
        """The numbers of images that passed through a network outside of steps, by purpose."""
        return {}

    @property
    def capture_seconds(self) -> float:
        """The seconds spent on capturing steps as CUDA graphs."""
        return 0.0

    @property
    def _parts(self) -> dict[str, StatefulPart]:
        """The parts whose bytes the method declares, by name: memories, statistics, copies."""
        return {}

    def _predicting_state(self, *, memory: bool) -> dict[str, Any]:
        """Returns entries of the learner's file, besides its state, that predicting needs."""
        return {}

    def _load_predicting_state(self, content: dict[str, Any]) -> None:  # noqa: B027
        """Loads the entries of `_predicting_state` from a file's content."""

    # ---- learning and predicting

    def learn(self, x: Any, y: Any) -> Step:
        """Learns a batch of images (n, c, h, w), uint8 or float, or of float vectors (n, d), and
        returns the report of the step. Labels are all text or all whole numbers.

        An invalid batch raises an InputError and changes nothing. If a step fails before an update
        that cannot be undone, it is undone, except for a task boundary before it and growth of the
        head. If it fails later, the learner is unfinished: it can predict, but not learn or be
        saved."""
        samples = self.sampler(x)
        labels = inputs.as_labels(y, len(samples))
        with self._exclusive(tuple(samples.shape)):
            self._expect_samples(samples)
            if not self._prepared:
                self._prepare(tuple(samples.shape[1:]), samples.dtype)
            if self.class_index.has_unseen(labels):
                self.class_index.expect_kind_of(labels[0])
            return self._learn_batch(samples, labels)

    @property
    def sampler(self) -> Sampler:
        """The function from what the user gives to the samples that the method learns: features,
        if there is an encoder."""
        return Sampler(self.encoder, self.device, self.standardises_features)

    def encoder_identity(self) -> Identity | None:
        """Returns the name and hash of the learner's encoder, and what else its features depend on;
        None without an encoder."""
        if self.encoder is not None and self._encoder_identity is None:
            self._encoder_identity = shared_encoder(self.encoder, self.device).identity()
        return self._encoder_identity

    def end_task(self) -> bool:
        """Ends the current task, so that the method can finish its work on it before scores are
        taken. `new_task` does so too. Returns whether the method did any work now. This is false if
        the method has none to do, if the task has ended already or if it has had no batch. If the
        work fails, the learner is unfinished."""
        with self._exclusive():
            return self._end_task()

    def new_task(self) -> None:
        """Ends the current task and begins a new one, unless the current one has had no batch yet.
        From the first call on, task boundaries are no longer inferred."""
        with self._exclusive():
            self._end_task()
            self.class_index.told = True
            self._begin_task()

    def scores(self, x: Any) -> Tensor:
        """Returns scores (n, classes), usually logits, with columns in the order of `classes`.
        Waits while another thread learns a batch."""
        with self._lock.reading():
            return self._predictor().scores(x)

    def predict(self, x: Any) -> Tensor | Texts:
        """Returns the labels with the highest scores, (n): numbers as a tensor, text as a NumPy
        array. Waits while another thread learns a batch."""
        with self._lock.reading():
            return self._predictor().predict(x)

    def snapshot(self) -> Predictor:
        """Returns an independent predictor, which other threads may use while learning goes on."""
        with self._lock.reading(), torch.inference_mode(False):
            return self._predictor().independent_copy()

    @property
    def classes(self) -> list[Label]:
        """The labels seen so far, in order of arrival."""
        return list(self.class_index.labels)

    @property
    def class_names(self) -> list[str]:
        """The name of each class in `classes`: the one that was set, or else its label as text. Set
        it to a list of names for the labels 0, 1, 2, ..."""
        return [self._names.get(label, str(label)) for label in self.classes]

    @class_names.setter
    def class_names(self, names: Sequence[str]) -> None:
        self._names = dict(enumerate(names))

    @property
    def task(self) -> int:
        """The number of task boundaries so far, which is the index of the current task."""
        return self.class_index.task

    @property
    def torch_device(self) -> torch.device:
        """The device that the learner computes on."""
        return devices.resolve_device(self.device)

    @property
    def kept(self) -> MemoryContents:
        """Copies of the samples in all memories of the learner, with their labels."""
        return contents_of([], self.classes)

    def forget(self, label: Any = None, *, where: Any = None) -> RemovalReport:
        """Removes samples from the memory, and returns a report. Raises an InputError if the method
        keeps none."""
        raise InputError(f"{self.key} keeps no samples that it could forget")

    def unlearn(self, x: Any, y: Any) -> Any:
        """Subtracts samples that were learned, and returns a report. Raises an InputError if the
        method does not keep sums."""
        raise InputError(
            f"{self.key} cannot unlearn samples: closed-form methods can (slda, ridge); forget "
            "removes samples from a memory"
        )

    def merge(self, other: Any) -> Any:
        """Adds what another learner has learned, and returns this learner. Raises an InputError if
        the method does not keep sums."""
        raise InputError(f"{self.key} cannot be merged: closed-form methods can (slda, ridge)")

    def __repr__(self) -> str:
        made = constructor_call(self)
        return f"<{made}: {self._progress}>" if self.steps else made

    def _repr_html_(self) -> str:
        settings = {name: short_value(value) for name, value in non_defaults(self).items()}
        return html_table(type(self).__name__, {**settings, "learned": self._progress})

    @property
    def _progress(self) -> str:
        return f"{len(self.classes)} classes after {self.steps} steps"

    # ---- configuration

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign] # or @dataclass overrides it

    def __post_init__(self) -> None:
        convert_settings(self)
        expect_setting_types(self)
        self.check_settings()
        self.class_index = ClassIndex(self.gap)

    def __setattr__(self, name: str, value: object) -> None:
        """Raises an InputError if a setting is changed after the learner was prepared, because
        the change would have no effect."""
        setting = self.__dataclass_fields__.get(name)
        if setting is not None and setting.init and self._prepared:
            raise InputError(
                f"{name} cannot be changed once learning has begun: make a new learner"
            )
        super().__setattr__(name, value)

    def check_settings(self) -> None:
        """Raises an InputError for an invalid setting. Methods extend it by their own settings."""
        usual = {setting.name: setting.default for setting in fields(self)}
        for name, why in self.traits.unsupported.items():
            expect_setting_name(type(self), name)
            wanted = f"{format_setting(usual[name])}: {why}"
            require(self, name, getattr(self, name) == usual[name], wanted)
        require(self, "gap", self.gap >= 1, "at least 1")
        if self.encoder is not None:
            canonical(self.encoder)  # raises an error for an unknown name
        require(self, "std", self.std is None or min(self.std, default=0) > 0, "positive")
        same = (self.mean is None) == (self.std is None)
        require(self, "mean", same, "given together with std")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the constructor's arguments. scikit-learn's `clone` calls it by this name."""
        return {name: getattr(self, name) for name in setting_names(type(self))}

    def prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Prepares the learner for samples of this shape and dtype: makes its network, for example.
        The first `learn` does so if this was not called. Raises an InputError after the first
        step."""
        if self.steps:
            raise InputError(f"this {type(self).__name__} has learned already")
        with self._exclusive((0, *shape)):
            self._prepare(shape, dtype)

    # ---- saving

    def save(self, path: str | Path, *, memory: bool = True) -> None:
        """Writes the learner to a file, from which `onepass.open` resumes it: bit for bit on the
        same kind of device. Raises a TrainingError if learning has diverged, and leaves an earlier
        file as it was.

        With `memory=False` the file holds no training samples: the opened learner can predict, but
        cannot learn."""
        file.write_checkpoint(Path(path), file.checkpoint_content(self, memory=memory))

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that learning changes, as tensors and plain values. Before the first
        step these are only the number of steps and the class index."""
        # a copy takes as much RAM as network, moments and memory do
        with self._lock.reading(), devices.naming_large_settings(self._sizes_of_step):
            self._expect_finished()
            own = {"steps": self.steps, "book": self.class_index.state_dict()}
            if not self.steps:
                return own
            return {**own, "finished": self._task_ended, **self._own_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a saved state. Raises a CheckpointError if the state does not fit, or if
        this learner has learned already."""
        if self.steps:
            raise CheckpointError("a state can only be loaded into a learner that is new")
        with (
            self._lock.learning(),
            torch.inference_mode(False),
            devices.selected_gpu(self.device),
            devices.own_precision(),
        ):
            book = validate.class_index_from(state, self.gap, self._state_keys)
            try:
                if state["steps"]:
                    self._restore(state, book)
                    self.steps, self._task_ended = state["steps"], state["finished"]
            except BaseException as problem:
                self._unprepare()
                self.steps = 0
                if isinstance(problem, CheckpointError) or not isinstance(problem, Exception):
                    raise
                raise CheckpointError(f"the state does not fit: {problem}") from problem
            self.class_index = book

    def params_sha256(self) -> str:
        """Returns a hash of the names, dtypes and bytes of the network's parameters and buffers, or
        of whatever else decides predictions."""
        with self._lock.reading():
            return sha256(self._parameters())

    def state_sha256(self) -> str:
        """Returns a hash of the whole `state_dict`: network, memory, optimiser, generators."""
        return sha256(self.state_dict())

    # ---- internals

    @contextmanager
    def _exclusive(self, batch: tuple[int, ...] = (0,)) -> Iterator[None]:
        """Lets one thread at a time change the learner, with gradients enabled. Raises an
        InputError in inference mode, because tensors made there can never be trained, and for a
        learner that only predicts. Raises a TrainingError for one that is unfinished. `batch` is
        the shape of the batch, for the error if there is too little RAM or GPU memory."""
        if self._only_predicts:
            raise InputError(
                "this learner was saved without its memory: it can predict, but cannot learn on; "
                "save(path) with the memory writes a file that can"
            )
        self._expect_finished()
        if torch.is_inference_mode_enabled():
            raise InputError("a learner cannot learn inside torch.inference_mode(): leave it first")
        devices.expect_working_threads()
        with (
            self._lock.learning(),
            torch.enable_grad(),
            devices.selected_gpu(self.device),
            devices.own_precision(),
            devices.naming_large_settings(lambda: self._sizes_of_step(batch)),
        ):
            yield

    def _sizes_of_step(self, batch: tuple[int, ...] = (0,)) -> dict[str, object]:
        """Returns the settings and sizes that decide how much RAM or GPU memory a step needs."""
        return {**self.get_params(), "batch": batch[0], devices.SAMPLE: math.prod(batch[1:])}

    def _expect_finished(self) -> None:
        if self._unfinished:
            raise TrainingError(
                f"this {type(self).__name__} is unfinished: learning failed after step "
                f"{self.steps}, in the middle of an update. It still predicts; to learn on, reopen "
                "the last checkpoint with onepass.open"
            )

    def _expect_learned(self) -> None:
        if not self.steps:
            raise NotFittedError(f"this {type(self).__name__} has learned nothing yet: call learn")

    def _draw_boundary_before(self, batch: list[Label]) -> None:
        """Ends the task and begins the next one if a boundary is due before the batch. A second
        call for the same batch does nothing."""
        if self.class_index.boundary_due(batch):
            self._end_task()
            self._begin_task()

    def _end_task(self) -> bool:
        """Ends the current task unless it has ended. Returns whether the method had work to do."""
        if self._task_ended or not self.class_index.batches:
            return False
        self._unfinished = True
        self._work_at_task_end()
        self._task_ended = True
        self._unfinished = False
        return type(self).on_task_end is not Learner.on_task_end

    def _begin_task(self) -> None:
        """Begins a new task, unless the current one has had no batch yet."""
        if not self.class_index.batches:
            return
        self._unfinished = True
        self.class_index.close_task()
        self._task_ended = False
        self._work_at_task_begin()
        self._unfinished = False

    def _work_at_task_end(self) -> None:
        self.on_task_end()

    def _work_at_task_begin(self) -> None:  # noqa: B027
        """Runs once at the beginning of each task but the first."""
