"""Detects diverged learning when a learner is scored, copied or saved. A step does not check,
because it would have to wait for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from onepass.base.errors import TrainingError

if TYPE_CHECKING:
    from onepass.learning.learner import Learner


def expect_not_diverged(learner: Learner) -> None:
    """Raises a TrainingError if the last loss or a parameter is not finite."""
    loss = learner._last_loss
    if loss is not None and not bool(torch.isfinite(loss)):
        raise _diverged(learner, f"the loss of {learner.key!r} is {float(loss)}")
    if learner._prepared:
        expect_finite_parameters(learner, learner.model)


def expect_finite_parameters(learner: Learner, net: nn.Module) -> None:
    """Raises a TrainingError if a parameter of a network is not finite."""
    if not _all_finite(net):
        raise _diverged(learner, f"the parameters of {learner.key!r} are not finite")


def _diverged(learner: Learner, what: str) -> TrainingError:
    return TrainingError(
        f"{what} at step {learner.steps}: learning has diverged. A smaller lr (now "
        f"{learner.lr:g}) or smaller features may help; earlier checkpoints are intact"
    )


@torch.no_grad()
def _all_finite(net: nn.Module) -> bool:
    """Returns whether every parameter is finite. Sums of tensors are finite only if all their
    values are, and summing is much faster than testing each value. Finite values can overflow a
    sum, so a sum that is not finite is checked value by value. A finite result waits for the GPU
    once."""
    sums = [parameter.sum() for parameter in net.parameters()]
    if not sums or bool(torch.isfinite(torch.stack(sums)).all()):
        return True
    return all(bool(torch.isfinite(parameter).all()) for parameter in net.parameters())
