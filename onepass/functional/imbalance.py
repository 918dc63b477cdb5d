"""P, N, PN and A-PN, which measure the imbalance of the gradients on each class's logit; w and v,
the weights that GSA computes from them.

For a sample k of class y_k with softmax probabilities p_k, the cross-entropy gradient on logit c is
p_k^c - 1[c = y_k]. S+ and S- sum it over all samples trained within task t (stream and replay). In
the other formulas, r runs over all tasks so far, and L(t') is the set of classes of task t'. P and
N are S+ and S- divided by the number of samples of the task.

    S+(t, c) = sum_k p_k^c 1[y_k != c]            pushes the logit down
    S-(t, c) = sum_k (p_k^c - 1) 1[y_k = c]       pushes it up

    PN(t, c)  = S+(t, c) / S-(t, c)             eq. (5) for one class, as eq. (13) uses it
    A-PN(c)   = sum_r S+(r, c) / sum_r S-(r, c)                  eq. (6)
    PN(t, t') = sum_{c in L(t')} S+(t, c) / sum_{c in L(t')} S-(t, c)    eq. (5), per task
    w_c = 2 / (1 + exp A-PN(c)),   v_c = -1 / PN(t, c)          eq. (13)

PN is -1 in balance. Below -1 a class is suppressed, above -1 it is boosted.

Departure from the paper: eq. (3) divides the sums of task r by its number of samples n_r. The
division cancels in PN. In A-PN it would weight each task by 1 / n_r, and n_r of the running task is
unknown online. The paper's text (new gradients are added to the running sums) and its code use raw
sums, and so do we.
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

BALANCED_W = 2 / (1 + math.exp(-1))  # w at A-PN = -1


def logit_gradients(output: Output, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the positive and the negative gradient of each sample on each logit, both (n, C),
    times the sample's weight.

    The softmax runs over the classes seen (a mask). The gradients of a sample sum to zero.
    """
    logits = output.logits.to(widest_float(seen.device)).masked_fill(~seen, -torch.inf)
    own = output.y.unsqueeze(1)  # (n, 1)
    # p of every class except the sample's own, (n, C)
    others = logits.softmax(dim=1).scatter(1, own, 0) * output.weight.unsqueeze(1)
    to_own = others.sum(dim=1, keepdim=True)  # 1 - p_y as a sum: 1 - p_y rounds to 0 as p_y nears 1
    return others, torch.zeros_like(others).scatter(1, own, -to_own)


class Balance(StatefulPart):
    """Running sums of the positive and negative gradients of every class, over this task and over
    all tasks so far, and the ratios of these sums.

    `sums` is (this task or all tasks, positive or negative, C). `samples` is the sum of the
    samples' weights and `updates` the number of calls of `update`, both in this task.
    """

    tensors: ClassVar[tuple[str, ...]] = ("sums", "samples", "updates")

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.sums = torch.zeros(2, 2, capacity, dtype=widest_float(device), device=device)
        self.samples = torch.zeros((), dtype=widest_float(device), device=device)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def task_positive(self) -> Tensor:
        """S+(t, c) of the running task, (C)."""
        return self.sums[0, 0]

    @property
    def task_negative(self) -> Tensor:
        """S-(t, c) of the running task, (C)."""
        return self.sums[0, 1]

    @property
    def positive(self) -> Tensor:
        """The sum of S+ over all tasks, (C)."""
        return self.sums[1, 0]

    @property
    def negative(self) -> Tensor:
        """The sum of S- over all tasks, (C)."""
        return self.sums[1, 1]

    def update(self, outputs: Sequence[Output], seen: Tensor) -> Tensor:
        """Adds the gradients of the outputs' samples to the sums. Returns these gradients: positive
        and negative, (2, n, C), where n counts the samples of all outputs."""
        self.updates += 1
        if not outputs:
            return torch.zeros(2, 0, len(seen), dtype=self.sums.dtype, device=seen.device)
        together = Output.of_all(outputs).detach()
        gradients = torch.stack(logit_gradients(together, seen))  # (2, n, C)
        sizes = [len(output.y) for output in outputs]
        for gradient in torch.split(gradients, sizes, dim=1):  # (2, n_i, C) of one output
            self.sums += gradient.sum(dim=1)
        self.samples += together.weight.sum()
        return gradients

    def new_task(self) -> None:
        self.sums[0].zero_()
        self.samples.zero_()
        self.updates.zero_()

    def grow(self, rows: int) -> None:
        self.sums = F.pad(self.sums, (0, rows - self.sums.shape[2]))

    def p(self) -> Tensor:
        """Returns P(t, c), eq. (3): the mean positive gradient over all samples of this task,
        stream and replay. We read the paper's n^t as n^{t,r}."""
        return self.task_positive / self.samples

    def n(self) -> Tensor:
        """Returns N(t, c), eq. (3): the mean negative gradient over the same samples."""
        return self.task_negative / self.samples

    def pn(self) -> Tensor:
        """Returns PN(t, c) of the running task: NaN for a class without gradients in this task,
        minus infinity for one with positive gradients only."""
        return _ratio(self.task_positive, self.task_negative)

    def a_pn(self) -> Tensor:
        """Returns A-PN(c), from the class's first task to now, with the special values of `pn`."""
        return _ratio(self.positive, self.negative)

    def task_pn(self, group: Sequence[int]) -> Tensor:
        """Returns PN(t, t') of a group of classes (rows of the head) in the running task t."""
        rows = torch.as_tensor(group, device=self.positive.device)
        return _ratio(self.task_positive[rows].sum(), self.task_negative[rows].sum())


def class_weight(positive: Tensor, negative: Tensor) -> Tensor:
    """Returns w of eq. (13) from S+ and S- over all tasks. It lies between 1 and 2, and is that of
    balance if both sums are 0.

    >>> class_weight(torch.tensor([0.0, 1.0, 2.0, 0.0]), -torch.tensor([1.0, 1.0, 1.0, 0.0]))
    tensor([1.0000, 1.4621, 1.7616, 1.4621])
    """
    w = 2 * torch.sigmoid(positive / negative.abs())  # A-PN is minus this ratio
    return w.nan_to_num(BALANCED_W)


def log_class_scale(positive: Tensor, negative: Tensor) -> Tensor:
    """Returns log v of eq. (13), log |S-| - log S+, from the sums of this task. v is 1 if S+ is 0,
    else 0 if S- is 0. The quotient itself would overflow if S+ consists of rounding errors.

    >>> log_class_scale(torch.tensor([1.0, 0.5, 0.0]), -torch.tensor([1.0, 1.0, 1.0])).exp()
    tensor([1., 2., 1.])
    """
    log_v = negative.abs().log() - positive.log()
    return log_v.nan_to_num(nan=0, posinf=0, neginf=-torch.inf)


def _ratio(positive: Tensor, negative: Tensor) -> Tensor:
    """Returns positive / negative. An empty negative sum is +0, but the ratio must be -inf there.

    >>> _ratio(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([-2.0, 0.0, 0.0])).tolist()
    [-0.5, -inf, nan]
    """
    return -(positive / negative.abs())
