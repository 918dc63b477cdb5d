"""Settings beyond the paper's objective: none acts by default, and each changes the result."""

import inspect

import pytest
import torch
from gsa_against_naive import COMMON, gsa, stream
from tiny_learners import corners, flat, learned
from torch import nn

from onepass import GSA
from onepass.base.settings import setting_names
from onepass.methods import gsa_variants

PAPERS_OWN = {"mix", "fill"}
OTHERS = [
    {"current": 5},
    {"sampling": "random"},
    {"forwards": "separate"},
    {"statistics": "mix"},
    {"update": "after"},
    *({"weights": weights} for weights in ("w", "v", "none", "inverse")),
    {"new_classes": "task"},
    {"rivals": "all"},
    *({"without": term} for term in ("new", "previous", "cross")),
]


def test_in_common_the_objective_is_the_papers():
    named = set(inspect.get_annotations(GSA)) & set(setting_names(GSA))
    assert named == {"head", "lr"} | PAPERS_OWN | set(gsa_variants.PAPER)
    assert not gsa_variants.departs_from_paper(GSA(**COMMON))
    own = {**COMMON, "mix": 20, "fill": 3, "memory": 5, "lr": 0.1}
    assert not gsa_variants.departs_from_paper(GSA(**own))
    assert gsa_variants.departs_from_paper(GSA())


def test_with_the_papers_settings_both_objectives_learn_the_same_bits(monkeypatch):
    paper = learned(gsa(), stream("late classes"))
    monkeypatch.setattr(gsa_variants, "departs_from_paper", lambda _: True)
    monkeypatch.delattr(GSA, "paper_objective")
    other = learned(gsa(), stream("late classes"))
    assert other.state_sha256() == paper.state_sha256()


@pytest.mark.parametrize("settings", OTHERS, ids=str)
def test_each_other_setting_changes_the_result(settings):
    lacks_a_class = corners([6] * 4, torch.Generator().manual_seed(0))
    plain, other = (
        learned(gsa(net=nn.BatchNorm1d(6), mix=40, **chosen), [*stream("tasks"), lacks_a_class])
        for chosen in ({}, settings)
    )
    assert not torch.allclose(flat(other), flat(plain), atol=1e-4)
