"""A registered method inherits presets, except where it declares its own default."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from isolated_registries import isolate_registries

from onepass import GSA, OCMGSA
from onepass.base.settings import Preset
from onepass.learning.registry import METHODS, get, method
from onepass.runs.spec import Job


def test_a_subclass_keeps_the_settings_that_it_declares_in_every_preset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    isolate_registries(monkeypatch, METHODS)

    @method("mine", paper="none, a test", year=0)
    @dataclass(kw_only=True, eq=False)
    class Mine(GSA):
        lr: float = 0.5

    assert get("mine").common_settings == get("gsa").common_settings | {"lr": 0.5}
    for preset in GSA.presets:
        theirs = Job("gsa", "cifar100", preset=preset).chosen_settings()
        ours = Job("mine", "cifar100", preset=preset).chosen_settings()
        assert ours == {name: value for name, value in theirs.items() if name != "lr"}
    assert GSA.presets["tuned"].settings["lr"] == 3e-4


@pytest.mark.parametrize("preset", GSA.presets)
def test_a_preset_is_whole_in_python_too(preset: str) -> None:
    """Its settings, given to the constructor, make the learner of the command line."""
    job = Job("gsa", "cifar100", preset=preset).chosen_settings()
    learner = GSA(**GSA.presets[preset].settings)
    assert {name: getattr(learner, name) for name in job} == job


def test_what_a_preset_leaves_open_is_as_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = {"common": GSA.presets["common"], "tuned": Preset({"lr": 3e-4}, "a test")}
    monkeypatch.setattr(GSA, "presets", partial)
    chosen = Job("gsa", "cifar100", preset="tuned").chosen_settings()
    assert chosen == {**partial["common"].settings, "lr": 3e-4}


def test_ocm_gsa_has_the_settings_of_the_papers_and_not_those_tuned_for_gsa() -> None:
    learner, papers = OCMGSA(), get("gsa").common_settings
    assert {name: getattr(learner, name) for name in papers} == papers
