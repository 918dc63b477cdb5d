"""The contents of a learner's memories, and the removal of samples from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onepass.base.errors import InputError
from onepass.base.parts import Label
from onepass.base.text import html_table, quoted, shortened
from onepass.learning.class_index import Texts, labels_of
from onepass.learning.network_copies import NetworkCopy
from onepass.memory import Store

if TYPE_CHECKING:
    from onepass.learning.learner import Learner


@dataclass(frozen=True, eq=False)
class MemoryContents:
    """Copies of the samples in a learner's memories: `x` as `learn` got them, without augmentation,
    and their labels `y`."""

    x: Tensor
    y: Tensor | Texts

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"<Kept: {len(self)} samples of {len(self._counts)} classes>"

    def _repr_html_(self) -> str:
        each = ", ".join(f"{label}: {count}" for label, count in self._counts.items())
        return html_table("Kept", {"samples": len(self), "of each class": shortened(each)})

    @property
    def _counts(self) -> dict[str, int]:
        """The number of samples of each label."""
        return dict(Counter(map(str, self.y.tolist())))


@dataclass(frozen=True)
class RemovalReport:
    """The result of `Learner.forget`: how many samples were removed, how many are left, and whether
    the network unlearns them. It does so only if the method trains it anew from the memory before
    it predicts, as GDumb does."""

    samples: int
    left: int
    unlearned: bool

    def __str__(self) -> str:
        done = f"{self.samples} samples removed from the memory, {self.left} are left"
        if self.unlearned:
            return f"{done}; the network will be trained anew on those"
        return f"{done}; the network has not unlearned them: its weights are as they were"


def stores_of(learner: Learner) -> list[Store]:
    """Returns the parts of a learner that are memories."""
    return [part for part in learner._parts.values() if isinstance(part, Store)]


def memory_bytes(learner: Learner) -> int:
    """Returns the bytes of a learner's memories when they are full, and of its statistics that
    declare theirs."""
    parts = learner._parts.values()
    return sum(part.bytes for part in parts if not isinstance(part, NetworkCopy))


def copy_bytes(learner: Learner) -> int:
    """Returns the bytes of a learner's copies of the network."""
    parts = learner._parts.values()
    return sum(part.bytes for part in parts if isinstance(part, NetworkCopy))


def contents_of(stores: Iterable[Store], classes: list[Label]) -> MemoryContents:
    """Returns copies of the samples in these memories, one memory after the other, in the order of
    slots. `classes` are the labels of the head's rows."""
    held = [(store.x[: int(store.size)], store.y[: int(store.size)]) for store in stores]
    if not held:
        return MemoryContents(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    x, rows = (torch.cat(parts) for parts in zip(*held, strict=True))
    return MemoryContents(x, labels_of(rows, classes))


def remove_samples(stores: Sequence[Store], gone: Tensor, *, unlearned: bool) -> RemovalReport:
    """Removes the samples where the mask `gone` (n), over the contents of these memories, is true.
    Returns a report; `unlearned` is passed on to it."""
    sizes = [int(store.size) for store in stores]
    for store, part in zip(stores, torch.split(gone, sizes), strict=True):
        store.forget(part.to(store.y.device))
    removed = int(gone.sum())
    return RemovalReport(removed, len(gone) - removed, unlearned)


def removal_mask(where: Any, kept: MemoryContents) -> Tensor:
    """Returns a mask (n) over the kept samples, from a mask or a function of samples and labels.
    Raises an InputError if `where` gives anything else."""
    given = where(kept.x, kept.y) if callable(where) else where
    try:
        mask = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"where must be a mask or a function that returns one, not {quoted(given)}"
        ) from None
    if mask.dtype != torch.bool or mask.shape != (len(kept),):
        got = f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
        raise InputError(
            f"where must be a boolean mask over the {len(kept)} samples in `kept`, true for those "
            f"to remove, not {got}"
        )
    return mask
