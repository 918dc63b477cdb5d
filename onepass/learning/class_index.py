"""The index of classes: labels in order of arrival, and the number of tasks. A boundary is the
moment between two tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass.base.errors import CheckpointError, InputError
from onepass.base.expect import expect_alike, expect_kind, expect_number
from onepass.base.parts import Label
from onepass.base.text import quoted

LARGEST_LABEL = 2**63 - 1
Texts = np.ndarray[Any, np.dtype[np.str_]]


@dataclass
class ClassIndex:
    """A map from labels to rows of the head, which also counts tasks.

    A boundary is inferred before a batch with an unseen class if at least `gap` batches in a row
    had none. After the learner's `new_task` was called once, no boundary is inferred.

    >>> index = ClassIndex(gap=2)
    >>> [index.enter(batch) for batch in ([0, 1], [1, 0], [0, 2], [0], [1], [3])]
    [False, False, False, False, False, True]
    >>> index.labels, index.task
    ([0, 1, 2, 3], 1)
    """

    gap: int
    labels: list[Label] = field(default_factory=list)
    task: int = 0  # the number of boundaries so far
    told: bool = False  # whether `new_task` was ever called
    quiet: int = 0  # batches since the last one with an unseen class
    batches: int = 0  # batches of the current task so far

    def __post_init__(self) -> None:
        self.row_of = {label: row for row, label in enumerate(self.labels)}

    def has_unseen(self, batch: Iterable[Label]) -> bool:
        """Returns whether a label of the batch has no row yet."""
        return not self.row_of.keys() >= set(batch)

    def expect_kind_of(self, label: Label) -> None:
        """Raises an InputError if the label is text and the labels so far are numbers, or vice
        versa."""
        if self.labels and type(label) is not type(self.labels[0]):
            kind = "text" if isinstance(self.labels[0], str) else "whole numbers"
            raise InputError(f"y: the labels of this learner are {kind}, not {quoted(label)}")

    def boundary_due(self, batch: Iterable[Label]) -> bool:
        """Returns whether `enter` would infer a boundary before this batch."""
        silent = not self.told and self.quiet >= self.gap and self.batches > 0
        return silent and self.has_unseen(batch)

    def enter(self, batch: Iterable[Label]) -> bool:
        """Gives the batch's unseen labels the next rows and counts the batch. Returns whether a
        boundary was inferred before it."""
        labels = list(dict.fromkeys(batch))
        inferred = self.boundary_due(labels) and self.close_task()
        unseen = [label for label in labels if label not in self.row_of]
        self.add(unseen)
        self.quiet = 0 if unseen else self.quiet + 1
        self.batches += 1
        return inferred

    def remove(self, labels: Iterable[Label]) -> None:
        """Removes labels. Those behind them get the next smaller rows."""
        gone = set(labels)
        self.labels = [label for label in self.labels if label not in gone]
        self.row_of = {label: row for row, label in enumerate(self.labels)}

    def add(self, labels: Iterable[Label]) -> None:
        """Gives the unseen ones of these labels the next rows."""
        for label in labels:
            if label not in self.row_of:
                self.row_of[label] = len(self.labels)
                self.labels.append(label)

    def close_task(self) -> bool:
        """Ends the current task and returns true. If the task has had no batch yet, it changes
        nothing and returns false."""
        if not self.batches:
            return False
        self.batches = 0
        self.task += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any], gap: int, steps: int) -> ClassIndex:
        """Returns the index of a saved state after `steps` steps. Raises a CheckpointError if the
        state is impossible, or if its `gap` is another one."""
        # errors name the state `book`, as files do
        expect_alike(state, cls(gap).state_dict(), "book")
        expect_number(state["gap"], gap, gap, "book.gap")
        for name in ("task", "quiet", "batches"):
            expect_number(state[name], 0, steps, f"book.{name}")
        for label in state["labels"]:
            expect_kind(label, str if isinstance(state["labels"][0], str) else int, "book.labels")
            if isinstance(label, int):
                expect_number(label, -LARGEST_LABEL - 1, LARGEST_LABEL, "book.labels")
        if len(set(state["labels"])) != len(state["labels"]):
            raise CheckpointError("book.labels has a label twice")
        if state["labels"] and not steps:
            raise CheckpointError(f"book has {len(state['labels'])} labels before the first step")
        return cls(**{**state, "labels": list(state["labels"])})


def labels_of(rows: Tensor, classes: Sequence[Label]) -> Tensor | Texts:
    """Returns the labels of rows: text as a NumPy array, numbers as a tensor on the rows' device.

    >>> labels_of(torch.tensor([1, 0, 1]), ["cat", "dog"]), labels_of(torch.tensor([0]), [-7])
    (array(['dog', 'cat', 'dog'], dtype='<U3'), tensor([-7]))
    """
    if classes and isinstance(classes[0], str):
        return np.array(classes).take(rows.cpu().numpy())
    return torch.tensor(classes, device=rows.device)[rows]
