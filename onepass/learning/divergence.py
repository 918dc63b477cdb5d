"""Detects diverged learning when a learner is scored, copied or saved. Steps do not check, because
a check waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from onepass.base import devices
from onepass.base.errors import TrainingError

if TYPE_CHECKING:
    from onepass.learning.network_learner import NetworkLearner


def expect_not_diverged(learner: NetworkLearner) -> None:
    """Raises a TrainingError if the last loss or a parameter of the learner is not finite, and an
    InputError in a forked process, where the sum of a parameter might never end."""
    devices.expect_working_threads()
    loss = learner._last_loss
    if loss is not None and not bool(torch.isfinite(loss)):
        raise _diverged(learner, f"the loss of {learner.key!r} is {float(loss)}")
    if learner._prepared:
        expect_finite_parameters(learner, learner.model)


def expect_finite_parameters(learner: NetworkLearner, net: nn.Module) -> None:
    """Raises a TrainingError if a parameter of `net`, a network of the learner, is not finite."""
    if not _all_finite(net):
        raise _diverged(learner, f"the parameters of {learner.key!r} are not finite")


def _diverged(learner: NetworkLearner, what: str) -> TrainingError:
    return TrainingError(
        f"{what} at step {learner.steps}: learning has diverged. A smaller lr (now "
        f"{learner.lr:g}) or smaller input values may help; earlier checkpoints are intact"
    )


@torch.no_grad()
def _all_finite(net: nn.Module) -> bool:
    """Returns whether every parameter is finite. The sum of a tensor is finite only if all its
    values are, and summing is much faster than testing each value. Finite values can overflow a
    sum. So if a sum is not finite, all parameters are tested value by value. If all sums are
    finite, the host waits for the GPU only once."""
    sums = [parameter.sum() for parameter in net.parameters()]
    if not sums or bool(torch.isfinite(torch.stack(sums)).all()):
        return True
    return all(bool(torch.isfinite(parameter).all()) for parameter in net.parameters())
