"""The state of closed-form methods: counts and sums of whole numbers, by class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from onepass.base.errors import InputError
from onepass.base.parts import Label, StatefulPart
from onepass.base.text import quoted
from onepass.functional import exact
from onepass.functional.closed_form import Moments
from onepass.functional.grid import STEPS

FULL = (
    "this learner's sums have reached 2^53, up to which whole numbers are exact: learn on with a "
    "new learner"
)
LEAST_COUNT = 1e-100  # of a class that has faded


class Sums(StatefulPart):
    """Counts, sums and a Gram matrix of features (n, D), which are whole numbers, in float64.

    All numbers stay below 2^53, so that they are exact, and do not depend on the order in which
    samples, or other sums, were added. Classes are in sorted order. Without a Gram matrix only its
    diagonal is kept. Of a Gram matrix only the upper triangle counts.
    """

    def __init__(self, width: int, *, with_gram: bool, device: torch.device) -> None:
        self.width, self.device = width, device
        self.labels: list[Label] = []
        self.counts = self._zeros(0)
        self.totals = self._zeros(0, width)
        self.gram = self._zeros(width, width) if with_gram else None
        self._squares = None if with_gram else self._zeros(width)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    @classmethod
    def of(cls, features: Tensor, labels: Sequence[Label], *, with_gram: bool) -> Sums:
        """Returns the sums of whole-number features (n, D) in float32 with their labels."""
        made = cls(features.shape[1], with_gram=False, device=features.device)
        made.labels = sorted(set(labels))
        row_of = {label: row for row, label in enumerate(made.labels)}
        rows = torch.tensor([row_of[label] for label in labels], device=features.device)
        made.counts = torch.bincount(rows, minlength=len(made.labels)).double()
        made.totals = exact.class_sums(features, rows, len(made.labels))
        if with_gram:
            made.gram, made._squares = exact.gram(features)[0], None
        else:
            made._squares = features.square().sum(dim=0, dtype=torch.float64)
        return made

    @property
    def squares(self) -> Tensor:
        """The sum of squares of each feature, (D): the diagonal of the Gram matrix."""
        if self.gram is not None:
            return self.gram.diagonal().double()
        assert self._squares is not None
        return self._squares

    @property
    def samples(self) -> float:
        return float(self.counts.sum())

    @property
    def bytes(self) -> int:
        """The bytes of all sums, whatever the number of samples."""
        tensors = [self.counts, self.totals, self.squares if self.gram is None else self.gram]
        return sum(tensor.nbytes for tensor in tensors)

    def moments(self) -> Moments:
        """Returns the sums in units of 1 instead of grid steps."""
        gram = None if self.gram is None else self.gram.triu() / STEPS**2
        return Moments(self.counts, self.totals / STEPS, self.squares / STEPS**2, gram)

    # ---- changes; each checks first, and then changes everything or nothing

    def add(self, other: Sums) -> None:
        """Adds sums of other samples. Raises an InputError if a number could pass 2^53."""
        self.expect_room(other)
        self.add_classes(other.labels)
        self._accumulate(other, 1)

    def expect_room(self, other: Sums) -> None:
        """Raises an InputError if a sum of both could pass 2^53. No entry of a Gram matrix is
        larger than the largest of its diagonal, and no total of a class is larger than that or the
        count: |x| <= x^2 for whole numbers."""
        largest = max(float((self.squares + other.squares).amax()), self.samples + other.samples)
        if largest >= exact.EXACT_FLOAT64:
            raise InputError(FULL)

    def subtract(self, other: Sums, *, exact: bool = True) -> list[Label]:
        """Subtracts sums of samples that were added before, and returns the labels that have no
        samples left. Raises an InputError if it is certain that they were not added; unless
        `exact`, because their sums may have been rounded in another way, only counts are
        certain."""
        left = self._counts_without(other)
        if exact:
            self._expect_contained(other, left)
        self._accumulate(other, -1)
        gone = [label for label, count in zip(self.labels, left.tolist(), strict=True) if not count]
        stays = left > 0
        self.labels = [label for label in self.labels if label not in gone]
        self.counts, self.totals = self.counts[stays], self.totals[stays]
        return gone

    def _counts_without(self, other: Sums) -> Tensor:
        """Returns how many samples of each class would be left. Raises an InputError if the other
        sums have a class that is not here, or more samples of one."""
        for label in other.labels:
            if label not in self.labels:
                raise InputError(f"label {quoted(label)} has not been learned: see learner.classes")
        left = self.counts.index_add(0, self._rows(other.labels), other.counts, alpha=-1)
        for label, count in zip(self.labels, left.tolist(), strict=True):
            if count < 0:
                raise InputError(
                    f"{int(self.counts[self.labels.index(label)])} samples of {quoted(label)} were "
                    f"learned, {int(-count)} fewer than are to be unlearned: nothing was changed"
                )
        return left

    def _expect_contained(self, other: Sums, left: Tensor) -> None:
        """Raises an InputError if the other sums cannot be a part of these; `left` are the counts
        without them."""
        totals = self.totals.index_add(0, self._rows(other.labels), other.totals, alpha=-1)
        for label, count, total in zip(self.labels, left.tolist(), totals, strict=True):
            if not count and bool(total.any()):
                raise InputError(
                    f"the samples of {quoted(label)} to be unlearned are not those that were "
                    "learned: as many, with another sum; nothing was changed"
                )
        if bool((self.squares < other.squares).any()):
            raise InputError(
                "the samples to be unlearned were not all learned: their squares have a larger "
                "sum; nothing was changed"
            )
        if not bool(left.any()) and not self._equal_products(other):
            raise InputError(
                "the samples to be unlearned are not those that were learned: as many, with other "
                "products; nothing was changed"
            )

    def _equal_products(self, other: Sums) -> bool:
        """Returns whether both have the same sums of squares, and of products if they are kept."""
        if self.gram is None or other.gram is None:
            return torch.equal(self.squares, other.squares)
        return torch.equal(self.gram.triu(), other.gram.triu().double())

    def _accumulate(self, other: Sums, sign: int) -> None:
        rows = self._rows(other.labels)
        self.counts.index_add_(0, rows, other.counts, alpha=sign)
        self.totals.index_add_(0, rows, other.totals, alpha=sign)
        if self.gram is not None and other.gram is not None:
            exact.add_upper(self.gram, other.gram, sign)
        else:
            self.squares.add_(other.squares, alpha=sign)

    def decay(self, factor: float) -> None:
        """Multiplies everything by a factor, after which the sums are no longer whole numbers. A
        class keeps at least a tiny count, so that its mean stays."""
        faded = (self.counts * factor).clamp(min=LEAST_COUNT)
        self.totals.mul_((faded / self.counts).unsqueeze(1))
        self.counts = faded
        (self.squares if self.gram is None else self.gram).mul_(factor)

    def _rows(self, labels: Iterable[Label]) -> Tensor:
        row_of = {label: row for row, label in enumerate(self.labels)}
        return torch.tensor([row_of[label] for label in labels], device=self.device).long()

    def add_classes(self, labels: Sequence[Label]) -> None:
        """Makes room for new classes, in sorted order."""
        if set(labels) <= set(self.labels):
            return
        known, self.labels = self.labels, sorted({*self.labels, *labels})
        rows = self._rows(known)
        self.counts = self._zeros(len(self.labels)).index_copy_(0, rows, self.counts)
        self.totals = self._zeros(len(self.labels), self.width).index_copy_(0, rows, self.totals)

    # ---- saving and comparing

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of the sums, with zeros below the diagonal of the Gram matrix."""
        own = {"counts": self.counts.clone(), "totals": self.totals.clone()}
        if self.gram is None:
            return {**own, "squares": self.squares.clone()}
        return {**own, "gram": self.gram.triu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts.copy_(state["counts"])
        self.totals.copy_(state["totals"])
        if self.gram is not None:
            self.gram.copy_(state["gram"])
        else:
            self.squares.copy_(state["squares"])

    def rows_of_numbers(self) -> Iterable[Tensor]:
        """Yields every number of the sums once, row by row: counts, totals, and the upper triangle
        of the Gram matrix or its diagonal."""
        yield self.counts
        yield from self.totals
        if self.gram is None:
            yield self.squares
        else:
            yield from (row[index:] for index, row in enumerate(self.gram))
