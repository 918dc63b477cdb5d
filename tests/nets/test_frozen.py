"""Tests that frozen layers keep their parameters and statistics."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import onepass


def block(*, affine: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=affine), nn.ReLU())


def body(affine: bool) -> nn.Sequential:
    """Returns a frozen layer followed by one that trains."""
    frozen = block(affine=affine).requires_grad_(False)
    return nn.Sequential(frozen, block(affine=affine))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("method", [onepass.ER, onepass.MIR])
def test_frozen_layers_keep_their_statistics_and_others_update_theirs(method, affine):
    net, rng = body(affine), torch.Generator().manual_seed(0)
    learner = method(net=net, memory=20, device="cpu", seed=0)
    for step in range(6):
        x = 3 + torch.randn(10, 6, generator=rng)
        learner.learn(x, torch.arange(10) % 2 + 2 * (step > 2))
    now, before = learner.model.body.state_dict(), net.state_dict()
    same = {name: torch.equal(now[name], before[name]) for name in now}
    assert all(same[name] for name in now if name.startswith("0."))
    assert not same["1.1.running_mean"]


def test_frozen_layers_compute_the_same_in_training_and_in_prediction():
    learner = onepass.Finetune(net=body(True), device="cpu")
    learner.prepare((6,), torch.float32)
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(learner.model.body[0](x), learner.trainer.eval_model.body[0](x))
