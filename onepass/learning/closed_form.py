"""The base class of closed-form methods: their state is counts and sums of whole numbers.

No sample is kept, and no step has a gradient. A batch becomes whole numbers (`functional.grid`),
perhaps through a fixed random projection, and is added to sums (`learning.sums`). When somebody
asks for predictions, the method solves for a linear classifier, which stays until something is
learned. Because sums of whole numbers are exact, the same samples give the same sums in any order,
in any number of pieces, and on any machine. What was learned can be merged, and taken out again.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from onepass.base import devices, inputs, ram
from onepass.base.errors import CheckpointError, InputError, NotFittedError
from onepass.base.expect import expect_alike, expect_kind, expect_number
from onepass.base.parts import Label, StatefulPart, Step
from onepass.base.settings import require
from onepass.base.text import quoted
from onepass.functional import grid
from onepass.functional.closed_form import Linear, Moments
from onepass.functional.exact import EXACT_FLOAT64
from onepass.learning.checkpoint import validate
from onepass.learning.class_index import ClassIndex
from onepass.learning.encoding import Identity, same_function, shared_encoder
from onepass.learning.learner import Learner
from onepass.learning.predictor import Predictor
from onepass.learning.sums import Sums

BLOCK = 1024  # samples that are added to the sums at a time; fewer wait in a buffer
MOST_CLIPPED = 2**62


@dataclass(frozen=True)
class UnlearnReport:
    """The result of `unlearn`: how many samples were subtracted, how many are left, and the labels
    of which none is left."""

    samples: int
    left: int
    gone: list[Label]

    def __str__(self) -> str:
        gone = f"; without samples, and so gone: {', '.join(map(str, self.gone))}"
        return f"{self.samples} samples unlearned, {self.left} are left{gone * bool(self.gone)}"


class Inputs(nn.Module):
    """Maps raw samples of one shape to whole numbers on the grid, (n, d) in float32.

    Images, and vectors of 32 values or more, are standardised each for itself. In shorter vectors
    that would throw the scale away, so they are multiplied by `scale`. `mean` and `std` are
    applied before.
    """

    def __init__(self, learner: ClosedForm, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.values = shape, math.prod(shape)
        self.standardises = len(shape) == 3 or self.values >= grid.SHORTEST
        self.scale = learner.scale
        self.centre, self.deviation = (
            _per_value(learner.mean, shape),
            _per_value(learner.std, shape),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.to_grid(x)[0]

    def to_grid(self, x: Tensor) -> tuple[Tensor, int]:
        """Returns the whole numbers, and how many values were clipped."""
        flat = x.flatten(1)
        if self.centre is not None and self.deviation is not None:
            values = flat.double() / 255 if x.dtype == torch.uint8 else flat.double()
            flat = (values - self.centre.to(x.device)) / self.deviation.to(x.device)
        if self.standardises:
            return grid.standardise(flat), 0
        return grid.scale(flat, self.scale)


def _per_value(given: tuple[float, ...] | None, shape: tuple[int, ...]) -> Tensor | None:
    """Returns a mean or deviation of channels or features for each value of a flattened sample."""
    if given is None:
        return None
    if len(given) not in (1, shape[0]):
        units = f"{shape[0]} {'channels' if len(shape) == 3 else 'features'}"
        raise InputError(f"mean and std have {len(given)} values, but samples have {units}")
    each = torch.tensor(given, dtype=torch.float64).expand(shape[0])
    return each.repeat_interleave(math.prod(shape[1:]))


class Scorer(nn.Module):
    """Maps whole numbers on the grid to scores (n, C): the method's features, then a linear map."""

    weight: Tensor
    bias: Tensor

    def __init__(self, features: nn.Module, linear: Linear) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("weight", linear.weight / grid.STEPS)
        self.register_buffer("bias", linear.bias)

    def forward(self, z: Tensor) -> Tensor:
        h = self.features(z).double()  # (n, D)
        return torch.addmm(self.bias, h, self.weight).float()  # (n, C)


@dataclass(kw_only=True, eq=False)
class ClosedForm(Learner):
    """A method whose state is counts and sums, and whose classifier is solved from them.

    Parameters
    ----------
    scale
        A power of two that vectors of fewer than 32 values are multiplied by. Values of more than
        64 after it are clipped, and counted in `clipped`. Values below 1/64 after it are lost.
        Images and longer vectors are standardised each for itself instead.
    halflife
        The number of samples after which what was learned counts half, for streams that move. The
        sums are not exact then, so nothing can be merged or unlearned. None: nothing fades.
    """

    scale: float = 1.0
    halflife: float | None = None

    with_gram: ClassVar[bool] = True  # whether the method needs products of features
    _state_keys: ClassVar[tuple[str, ...]] = ("shape", "dtype", "sums", "clipped", "approximate")

    clipped: int = field(init=False, default=0)  # values of learned samples
    # whether features that differ by rounding were added or subtracted
    approximate: bool = field(init=False, default=False)
    features: nn.Module = field(init=False)
    _width: int = field(init=False)  # D, the number of features
    _projection: str = field(init=False)  # a hash of the features' random numbers
    _inputs: Inputs | None = field(init=False, default=None)
    _dtype: torch.dtype = field(init=False, default=torch.float32)
    _sums: Sums = field(init=False)
    _scorer: Scorer | None = field(init=False, default=None)  # solved from the sums as they are
    # batches on the grid, with labels, that are learned but not yet added to the sums
    _waiting: list[tuple[Tensor, list[Label]]] = field(init=False, default_factory=list)
    _room: float = field(init=False, default=0)  # samples that fit into the sums for certain

    # ---- what a method writes

    def features_for(self, inputs: int) -> int:
        """Returns D, the number of features of a sample of this many values, which decides the
        cost: by default the values themselves."""
        return inputs

    def make_features(self, inputs: int, width: int) -> nn.Module:
        """Returns a module from whole numbers (n, inputs) to whole numbers (n, D), both in grid
        steps and float32: by default the identity."""
        return nn.Identity()

    @abstractmethod
    def solve(self, moments: Moments) -> Linear:
        """Returns the classifier for features in units of 1. Its scores are logits."""

    def solved_features(self, shape: tuple[int, ...]) -> int:
        """Returns how many features a solve takes products of, for samples of this shape: 0 for a
        method without a Gram matrix. A solve takes their cube in operations."""
        return self.features_for(math.prod(shape)) if self.with_gram else 0

    @property
    def largest_feature(self) -> int:
        """The largest absolute value of a feature, in grid steps."""
        return grid.LARGEST if self._grid.standardises else grid.LARGEST_SCALED

    def check_settings(self) -> None:
        super().check_settings()
        power = self.scale > 0 and math.frexp(self.scale)[0] == 0.5
        require(self, "scale", power and 2.0**-100 < self.scale < 2.0**100, "a power of two")
        require(self, "halflife", self.halflife is None or self.halflife > 0, "positive, or none")

    # ---- exact sums

    def merge(self, other: ClosedForm, *, approximate: bool = False) -> ClosedForm:
        """Adds what another learner has learned, and returns this learner: the one that learned
        both. Raises an InputError, and changes nothing, if the two do not fit together.

        Features of a `:float` encoder differ by rounding in another engine or on another kind of
        processor. Then only `approximate` merges, and marks the sums."""
        if other is self:
            raise InputError(
                "a learner cannot be merged with itself: every sample would count twice"
            )
        if type(other) is not type(self):
            given = getattr(other, "key", "") or type(other).__name__
            raise InputError(f"{self.key} can only be merged with {self.key}, not with {given}")
        # always in the same order, or two threads that merge the same two learners could wait for
        # each other forever
        locks = sorted([(id(self), self._exclusive), (id(other), other._lock.reading)])
        with ExitStack() as held:
            for _, lock in locks:
                held.enter_context(lock())
            if other.classes:
                self._merge(other, approximate)
        return self

    def _merge(self, other: ClosedForm, approximate: bool) -> None:
        assert other._inputs is not None
        other._empty_buffer()
        prepared = self._prepared
        if not prepared:
            self._prepare(other._inputs.shape, other._dtype)
        try:
            rounded = self._expect_mergeable(other, approximate)
            self._empty_buffer()
            self._sums.add(other._sums)
        except BaseException:
            if not prepared:
                self._unprepare()
            raise
        self.class_index.add(other.class_index.labels)
        self._names = {**other._names, **self._names}
        self.steps += other.steps
        self.clipped += other.clipped
        self.approximate |= other.approximate or rounded
        self._measure_room()
        self._changed()

    def _expect_mergeable(self, other: ClosedForm, approximate: bool) -> bool:
        """Raises an InputError if the sums of another learner cannot be added. Returns whether its
        features differ by rounding."""
        mine, theirs = self._basis(), other._basis()
        rounded = self._expect_encoder(other.encoder_identity(), approximate)
        for name in mine | theirs:
            here, there = mine.get(name), theirs.get(name)
            if here != there and not (rounded and name == "encoder"):
                raise InputError(
                    f"the two learners cannot be merged: {name} is {here} here and {there} there"
                )
        self._expect_exact("merge")
        other._expect_exact("merge")
        self.class_index.expect_kind_of(other.classes[0])
        for label, name in other._names.items():
            if (known := self._names.get(label, name)) != name:
                raise InputError(
                    f"the two learners cannot be merged: class {label} is {quoted(known)} here and "
                    f"{quoted(name)} there"
                )
        return rounded

    def _expect_encoder(self, other: Identity | None, approximate: bool) -> bool:
        """Returns whether the features of another encoder differ from this learner's by rounding.
        Raises an InputError if they do, unless `approximate`."""
        own = self.encoder_identity()
        if own is None or other is None or own == other or not same_function(own, other):
            return False
        if not approximate:
            here, there = (f"{it['engine']} on {it['processor']}" for it in (own, other))
            raise InputError(
                f"the features of {self.encoder} come from {here}, and others from {there}, which "
                "rounds in another way: approximate=True (--approximate) goes on, and marks the "
                "sums"
            )
        return True

    def unlearn(self, x: Any, y: Any, *, approximate: bool = False) -> UnlearnReport:
        """Subtracts samples that were learned, in any batches: the sums are then those of a learner
        that never saw them. A class without samples is gone.

        Sums do not know single samples. Raises an InputError, and changes nothing, for samples that
        cannot have been learned: of unknown classes, more than were learned, or with larger sums.
        Other samples that were never learned are subtracted too. `approximate` is for encoders, as
        in `merge`."""
        samples = self.sampler(x)
        labels = inputs.as_labels(y, len(samples))
        with self._exclusive(tuple(samples.shape)):
            if not self.classes:
                raise NotFittedError(f"this {type(self).__name__} has learned nothing to unlearn")
            self._expect_samples(samples)
            self._expect_exact("unlearn")
            rounded = self._expect_encoder(self._encoder_here(), approximate)
            self._empty_buffer()
            taken = self._new_sums()
            for piece, names in _blocks(samples, labels):
                z = self._grid(piece.to(self.torch_device))
                taken.add(Sums.of(self.features(z), names, with_gram=self.with_gram))
            gone = self._sums.subtract(taken, exact=not (rounded or self.approximate))
            self.approximate |= rounded
            self.class_index.remove(gone)
            self._measure_room()
            self._changed()
            return UnlearnReport(len(labels), int(self._sums.samples), gone)

    @property
    def samples(self) -> int:
        """The number of samples learned, less those unlearned. What faded counts for less."""
        with self._lock.reading():
            self._empty_buffer()
            return round(self._sums.samples) if self._prepared else 0

    def class_sums(self) -> dict[Label, tuple[float, Tensor]]:
        """Returns the number of samples and the sum of features (D), in grid steps, of each
        class."""
        with self._lock.reading():
            self._empty_buffer()
            if not self._prepared:
                return {}
            sums = zip(self._sums.counts.tolist(), self._sums.totals.clone(), strict=True)
            return dict(zip(self._sums.labels, sums, strict=True))

    def sums_sha256(self) -> str:
        """Returns a hash of the sums, and of what gives them their meaning: the method, its width,
        grid and projection. Two learners share it if and only if they have learned the same, in
        whatever order."""
        with self._lock.reading():
            self._empty_buffer()
            digest = hashlib.sha256(json.dumps(self._basis(), sort_keys=True).encode())
            if self._prepared:
                digest.update(json.dumps(self._sums.labels).encode())
                if self.approximate:
                    digest.update(b"approximate")
                kind = "<i8" if self.halflife is None else "<f8"
                for row in self._sums.rows_of_numbers():
                    digest.update(row.cpu().numpy().astype(kind).tobytes())
            return digest.hexdigest()

    def _basis(self) -> dict[str, Any]:
        """Returns what two learners must share so that their sums can be added."""
        common: dict[str, Any] = {
            "method": self.key,
            "mean": self.mean,
            "std": self.std,
            "scale": self.scale,
            "halflife": self.halflife,
            "grid": [grid.STEPS, grid.LARGEST, grid.LARGEST_SCALED],
        }
        if self._inputs is None:
            return common
        if self.encoder is not None:
            common["encoder"] = self.encoder_identity()
        dtype = str(self._dtype).removeprefix("torch.")
        sample = {"samples": f"{dtype} {list(self._inputs.shape)}", "width": self._width}
        return {**common, **sample, "projection": self._projection}

    def _encoder_here(self) -> Identity | None:
        """Returns the identity of the learner's encoder on this machine."""
        if self.encoder is None:
            return None
        return shared_encoder(self.encoder, self.device).identity()

    def _expect_exact(self, verb: str) -> None:
        if self.halflife is not None:
            raise InputError(
                f"{verb} needs exact sums: with halflife={self.halflife:g} they are not, because "
                "what was learned fades"
            )

    def _empty_buffer(self) -> None:
        """Adds the batches that wait to the sums, in blocks. A block that fails waits on."""
        if not self._waiting:
            return
        devices.expect_working_threads()  # before the first product
        # tensors made in the caller's inference mode could not be changed outside of it
        with torch.inference_mode(False), torch.no_grad(), devices.own_precision():
            while self._waiting:
                taken, count = 0, 0
                for _, names in self._waiting:
                    if taken and count + len(names) > BLOCK:
                        break
                    taken, count = taken + 1, count + len(names)
                z = torch.cat([z for z, _ in self._waiting[:taken]])
                labels = [label for _, names in self._waiting[:taken] for label in names]
                self._sums.add(Sums.of(self.features(z), labels, with_gram=self.with_gram))
                del self._waiting[:taken]
        self._measure_room()

    def _measure_room(self) -> None:
        largest = max(float(self._sums.squares.amax()), self._sums.samples)
        self._room = (EXACT_FLOAT64 - largest) / self.largest_feature**2

    def _changed(self) -> None:
        self._scorer = None

    # ---- the contract of a learner

    @property
    def _prepared(self) -> bool:
        return getattr(self, "_inputs", None) is not None

    @property
    def _grid(self) -> Inputs:
        if self._inputs is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not seen a sample yet: call learn"
            )
        return self._inputs

    def _new_sums(self) -> Sums:
        return Sums(self._width, with_gram=self.with_gram, device=self.torch_device)

    def _prepare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        made = Inputs(self, shape)
        if made.values > grid.LONGEST:
            raise InputError(
                f"{self.key} takes samples of at most {grid.LONGEST} values, not {made.values}: "
                "choose smaller images (--image-size), or an encoder"
            )
        if made.standardises and self.scale != 1:
            raise InputError(
                f"{self.key}: scale is for vectors of fewer than {grid.SHORTEST} values; these "
                f"samples of {made.values} are standardised"
            )
        self._width = self.features_for(made.values)
        if self.with_gram and self.torch_device.type == "cpu":
            # sums in float64, and two copies of them to solve
            ram.expect_ram(24 * self._width**2, f"{self.key} with {self._width} features")
        self.features = self.make_features(made.values, self._width).to(self.torch_device)
        self._projection = _hash_of(self.features)
        self._sums = self._new_sums()
        self._inputs, self._dtype = made, dtype
        self._measure_room()

    def _unprepare(self) -> None:
        self._inputs, self._waiting, self.clipped, self.approximate = None, [], 0, False
        self._changed()

    def _expect_samples(self, samples: Tensor) -> None:
        if self._inputs is not None:
            inputs.expect_samples(samples, self._inputs.shape, self._dtype)

    def _learn_batch(self, samples: Tensor, labels: list[Label]) -> Step:
        with self._unprepared_if_failing():
            pieces = [
                (*self._grid.to_grid(piece.to(self.torch_device)), names)
                for piece, names in _blocks(samples, labels)
            ]
            self._make_room(pieces)
            if len(labels) + sum(len(names) for _, names in self._waiting) > BLOCK:
                self._empty_buffer()
        self._draw_boundary_before(labels)
        if self.halflife is not None:
            self._fade(len(labels))
        self._waiting += [(z, names) for z, _, names in pieces]
        self.clipped += sum(clipped for _, clipped, _ in pieces)
        self.approximate |= self._encoder_here() != self.encoder_identity()
        self.class_index.enter(labels)
        self.steps += 1
        self._room -= len(labels)
        self._changed()
        return Step.of(torch.zeros(()))

    @contextmanager
    def _unprepared_if_failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if not self.steps:  # nothing is learned yet: start again from the settings
                self._unprepare()
            raise

    def _make_room(self, pieces: Sequence[tuple[Tensor, int, list[Label]]]) -> None:
        """Raises an InputError if a sum could pass 2^53 with these batches on the grid."""
        samples = sum(len(names) for *_, names in pieces)
        if samples <= self._room:
            return
        self._empty_buffer()
        if samples <= self._room:
            return
        more = Sums(self._width, with_gram=False, device=self.torch_device)
        for z, _, names in pieces:
            more.add(Sums.of(self.features(z), names, with_gram=False))
        self._sums.expect_room(more)

    def _fade(self, samples: int) -> None:
        """Makes what was learned count less, by the half-life."""
        assert self.halflife is not None
        self._empty_buffer()
        self._sums.decay(0.5 ** (samples / self.halflife))

    def _predictor(self) -> Predictor:
        if not self.classes:
            self._expect_learned()
            raise NotFittedError(f"this {type(self).__name__} has unlearned all that it learned")
        devices.expect_working_threads()  # before a solve
        if self._scorer is None:
            self._empty_buffer()
            with torch.inference_mode(False), torch.no_grad(), devices.own_precision():
                self._scorer = Scorer(self.features, self.solve(self._sums.moments()))
        return Predictor(
            classes=tuple(self.classes),
            shape=self._grid.shape,
            dtype=self._dtype,
            where=self.torch_device,
            normalise=self._grid,
            scorer=self._scorer,
            sampler=self.sampler,
        )

    @property
    def classes(self) -> list[Label]:
        """The labels learned so far, in sorted order."""
        return sorted(self.class_index.labels)

    @property
    def class_names(self) -> list[str]:
        return [self._names.get(label, str(label)) for label in self.classes]

    @class_names.setter
    def class_names(self, names: Sequence[str]) -> None:
        self._names = dict(enumerate(names))

    def forget(self, label: Any = None, *, where: Any = None) -> Any:
        raise InputError(
            f"{self.key} keeps no samples: unlearn(x, y) subtracts samples from what was learned"
        )

    @property
    def _progress(self) -> str:
        clipped = f", {self.clipped} values clipped: choose a smaller scale" * bool(self.clipped)
        return super()._progress + clipped + ", approximate" * self.approximate

    @property
    def _parts(self) -> dict[str, StatefulPart]:
        if not self._prepared:
            return {}
        self._empty_buffer()
        return {"sums": self._sums}

    # ---- saving

    def params_sha256(self) -> str:
        """Returns `sums_sha256`: the sums decide every prediction."""
        return self.sums_sha256()

    def _own_state(self) -> dict[str, Any]:
        self._empty_buffer()
        return {
            "shape": list(self._grid.shape),
            "dtype": str(self._dtype).removeprefix("torch."),
            "sums": self._sums.state_dict(),
            "clipped": self.clipped,
            "approximate": self.approximate,
        }

    def _restore(self, state: dict[str, Any], book: ClassIndex) -> None:
        validate.expect_sizes(state["shape"], state["dtype"], {})
        self._prepare(tuple(state["shape"]), validate.DTYPES[state["dtype"]])
        expect_kind(state["clipped"], int, "clipped")
        self.clipped = expect_number(state["clipped"], 0, MOST_CLIPPED, "clipped")
        expect_kind(state["approximate"], bool, "approximate")
        self.approximate = state["approximate"]
        wanted = self._new_sums()
        wanted.add_classes(book.labels)
        expect_alike(state["sums"], wanted.state_dict(), "sums")
        for name, values in state["sums"].items():
            _expect_valid(values, name, whole=self.halflife is None)
        self._sums.add_classes(book.labels)
        self._sums.load_state_dict(state["sums"])
        self._measure_room()


def _blocks(samples: Tensor, labels: list[Label]) -> Iterator[tuple[Tensor, list[Label]]]:
    """Yields samples and labels in blocks."""
    for start in range(0, len(labels), BLOCK):
        yield samples[start : start + BLOCK], labels[start : start + BLOCK]


def _hash_of(module: nn.Module) -> str:
    """Returns a hash of a module's buffers, "" if it has none."""
    tensors = [(name, tensor) for name, tensor in sorted(module.state_dict().items())]
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)};".encode())
        digest.update(tensor.cpu().numpy().astype(np.dtype("<f8")).tobytes())
    return digest.hexdigest() if tensors else ""


def _expect_valid(values: Tensor, name: str, *, whole: bool) -> None:
    """Raises a CheckpointError for saved sums that no learning gives."""
    wrong = ~torch.isfinite(values) | (values.abs() >= EXACT_FLOAT64)
    if whole:
        wrong |= values != values.trunc()
    if name == "counts":
        wrong |= values <= 0
    if name == "squares":
        wrong |= values < 0
    if name == "gram":
        wrong |= torch.diag(values.diagonal() < 0)
    if bool(wrong.any()):
        raise CheckpointError(f"sums.{name} holds {quoted(float(values[wrong][0]))}")
