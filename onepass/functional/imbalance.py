"""P, N, PN and A-PN, how far the gradients on each class's logit are out of balance; w and v, the
weights that GSA makes of them.

For a sample k of class y the cross-entropy gradient on logit c is p_k^c - 1[c = y]. Over the
samples trained within task t (stream and replay),

    S+(t, c) = sum_k p_k^c 1[y_k != c]            pushes the logit down
    S-(t, c) = sum_k (p_k^c - 1) 1[y_k = c]       pushes it up

    PN(t, c)  = S+(t, c) / S-(t, c)             eq. (5) for one class, as eq. (13) uses it
    A-PN(c)   = sum_r S+(r, c) / sum_r S-(r, c)                  eq. (6)
    PN(t, t') = sum_{c in L(t')} S+(t, c) / sum_{c in L(t')} S-(t, c)    eq. (5), per task
    w_c = 2 / (1 + exp A-PN(c)),   v_c = -1 / PN(t, c)          eq. (13)

Balance is -1; below it a class is being suppressed, above it boosted. Departure from the paper's
letter: eq. (3) divides the sums of task r by its number of samples. That cancels in PN; in A-PN
it would weigh each task by 1 / n_r, and n_r of the running task is not known online. The paper's
words (new gradients are added to the running sums) and its code both use raw sums; so do we.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base.devices import widest_float
from onepass.base.parts import Output, StatefulPart

BALANCED_W = 2 / (1 + math.exp(-1))  # A-PN is -1


def logit_gradients(output: Output, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The positive and the negative gradient of each sample on each logit, (n, C) both; the softmax
    runs over the classes seen. Every sample's gradients add up to zero."""
    logits = output.logits.to(widest_float(seen.device)).masked_fill(~seen, -torch.inf)
    own = output.y.unsqueeze(1)  # (n, 1)
    # p of every class but the own                                                (n, C)
    others = logits.softmax(dim=1).scatter(1, own, 0) * output.weight.unsqueeze(1)
    to_own = others.sum(dim=1, keepdim=True)  # 1 - p_y, which would cancel for a sure sample
    return others, torch.zeros_like(others).scatter(1, own, -to_own)


class Balance(StatefulPart):
    """Running sums of the two gradient parts for every class, of this task and of all."""

    tensors: ClassVar[tuple[str, ...]] = ("sums", "samples", "updates")

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.sums = torch.zeros(2, 2, capacity, dtype=widest_float(device), device=device)
        self.samples = torch.zeros((), dtype=widest_float(device), device=device)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def task_positive(self) -> Tensor:
        return self.sums[0, 0]

    @property
    def task_negative(self) -> Tensor:
        return self.sums[0, 1]

    @property
    def positive(self) -> Tensor:
        return self.sums[1, 0]

    @property
    def negative(self) -> Tensor:
        return self.sums[1, 1]

    def update(self, outputs: Sequence[Output], seen: Tensor) -> Tensor:
        """Adds the gradients of these samples, and gives them: positive and negative, (2, n, C)."""
        self.updates += 1
        if not outputs:
            return torch.zeros(2, 0, len(seen), dtype=self.sums.dtype, device=seen.device)
        together = Output.of_all(outputs).detach()
        gradients = torch.stack(logit_gradients(together, seen))  # (2, n, C)
        sizes = [len(output.y) for output in outputs]
        for of_one in torch.split(gradients, sizes, dim=1):
            self.sums += of_one.sum(dim=1)
        self.samples += together.weight.sum()
        return gradients

    def new_task(self) -> None:
        self.sums[0].zero_()
        self.samples.zero_()
        self.updates.zero_()

    def grow(self, rows: int) -> None:
        self.sums = F.pad(self.sums, (0, rows - self.sums.shape[2]))

    def p(self) -> Tensor:
        """P(t, c), eq. (3): the mean positive gradient over all samples of this task, stream and
        replay; the paper's n^t is read as n^{t,r}."""
        return self.task_positive / self.samples

    def n(self) -> Tensor:
        """N(t, c), eq. (3): the mean negative gradient, likewise."""
        return self.task_negative / self.samples

    def pn(self) -> Tensor:
        """PN(t, c): not a number where a class has had no gradient in this task, minus infinity
        where it has had no negative one."""
        return _ratio(self.task_positive, self.task_negative)

    def a_pn(self) -> Tensor:
        """A-PN(c), from the class's first task to now."""
        return _ratio(self.positive, self.negative)

    def task_pn(self, group: Sequence[int]) -> Tensor:
        """PN(t, t') of a group of classes (as rows) in the running task t."""
        rows = torch.as_tensor(group, device=self.positive.device)
        return _ratio(self.task_positive[rows].sum(), self.task_negative[rows].sum())


def class_weight(positive: Tensor, negative: Tensor) -> Tensor:
    """Returns w of eq. (13), from S+ and S- over all tasks: between 1 and 2, and that of balance
    where both sums are 0.

    >>> class_weight(torch.tensor([0.0, 1.0, 2.0, 0.0]), -torch.tensor([1.0, 1.0, 1.0, 0.0]))
    tensor([1.0000, 1.4621, 1.7616, 1.4621])
    """
    w = 2 * torch.sigmoid(positive / negative.abs())
    return w.nan_to_num(BALANCED_W)


def log_class_scale(positive: Tensor, negative: Tensor) -> Tensor:
    """Returns log v of eq. (13), log |S-| - log S+, from the sums of this task; v is 1 where S+ is
    0. A difference of logarithms, since the quotient overflows where rounding alone makes S+.

    >>> log_class_scale(torch.tensor([1.0, 0.5, 0.0]), -torch.tensor([1.0, 1.0, 1.0])).exp()
    tensor([1., 2., 1.])
    """
    log_v = negative.abs().log() - positive.log()
    return log_v.nan_to_num(nan=0, posinf=0, neginf=-torch.inf)


def _ratio(positive: Tensor, negative: Tensor) -> Tensor:
    """positive / negative, also of a negative sum of nothing: that is a zero with the other sign.

    >>> _ratio(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([-2.0, 0.0, 0.0])).tolist()
    [-0.5, -inf, nan]
    """
    return -(positive / negative.abs())
