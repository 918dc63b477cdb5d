"""The tree itself: nothing registered is forgotten, and no exemption goes uncounted."""

import tomllib
from pathlib import Path

import pytest

import onepass
from onepass import registry
from onepass.checks import CHECKS, NEEDS_GPU

ROOT = Path(__file__).parents[2]
KEYS = [
    "finetune",
    "joint",
    "er",
    "gsa",
    "gsa-released",
    "agem",
    "mir",
    "gss",
    "aser",
    "rainbow-rt",
    "er-aml",
    "er-ace",
    "gdumb",
    "scr",
    "derpp",
]
EXEMPT = {
    "finetune": {"memory_reaches_the_gradient", "beats_finetuning"},
    "joint": {"memory_reaches_the_gradient", "beats_finetuning"},
    "scr": {"every_parameter_gets_a_gradient", "a_frozen_head_stays"},
    "gdumb": {
        "every_parameter_gets_a_gradient",
        "memory_reaches_the_gradient",
        "a_frozen_head_stays",
    },
}


def method_modules():
    files = (ROOT / "onepass" / "methods").glob("*.py")
    return {f"onepass.methods.{file.stem}" for file in files if file.stem != "__init__"}


def test_every_method_file_registers_a_method():
    assert {info.learner.__module__ for info in registry.methods()} == method_modules()


def test_the_methods_are_these():
    assert sorted(info.key for info in registry.methods()) == sorted(KEYS)


def test_the_contract_has_at_least_twenty_checks_with_a_sentence_each():
    assert len(CHECKS) >= 20
    assert all(check.__doc__ for check in CHECKS.values())


@pytest.mark.parametrize("info", registry.methods(), ids=lambda info: info.key)
def test_exemptions_are_those_listed_here_and_have_reasons(info):
    assert set(info.learner.exempt) == EXEMPT.get(info.key, set())
    assert all(reason.strip() for reason in info.learner.exempt.values())


def test_only_these_need_a_gpu():
    assert set(NEEDS_GPU) == {
        "devices_agree",
        "a_graph_gives_the_same_bits",
        "the_step_never_waits",
    }


def test_the_import_contract_knows_every_method_file():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    independent = next(c for c in contracts if c["type"] == "independence")
    assert independent["modules"] == ["onepass.methods.*"]


def test_every_learner_is_public():
    for info in registry.methods():
        assert getattr(onepass, info.learner.__name__) is info.learner


@pytest.mark.parametrize("info", registry.methods(), ids=lambda info: info.key)
def test_every_preset_names_its_source_and_builds(info):
    for name, preset in info.learner.presets.items():
        assert name in ("official", "tuned")
        assert preset.source.strip()
        assert preset.settings
        info.learner.configured(**preset.settings)


SGD = {"optimizer": "sgd", "weight_decay": 0.0}
PLAIN = {**SGD, "lr": 0.1, "replay": 10, "augment": "none"}
COSINE = {**PLAIN, "classifier": "cosine"}
OFFICIAL = {
    "agem": PLAIN,
    "mir": {**PLAIN, "candidates": 50},
    "gss": {**PLAIN, "lr": 0.01},
    "aser": {**PLAIN, "pool": 200, "neighbours": 3},
    "rainbow-rt": {"optimizer": "nesterov", "lr": 0.05, "weight_decay": 1e-4, "replay": 10},
    "er-aml": {**COSINE, "temperature": 0.2},
    "er-ace": COSINE,
    "gdumb": {
        "optimizer": "sgd",
        "lr": 0.05,
        "weight_decay": 1e-6,
        "epochs": 256,
        "fit_batch": 16,
        "cutmix": 0.5,
        "mirror": True,
    },
    "scr": {**SGD, "lr": 0.1, "replay": 100, "temperature": 0.1, "augment": "contrastive"},
    "derpp": {**SGD, "lr": 0.03, "replay": 32, "alpha": 0.1, "beta": 0.5},
}
COMMON = {"optimizer": "adam", "lr": 1e-3, "weight_decay": 1e-4, "augment": "crop-grey"}
DEFAULTS = {
    "er": {"replay": 64},
    "agem": {"replay": 64},
    "mir": {"replay": 64, "candidates": 320},
    "gss": {"replay": 64, "subsets": 10, "subset_size": 10},
    "aser": {"replay": 64, "pool": 200, "neighbours": 3},
    "rainbow-rt": {"replay": 64},
    "er-aml": {"replay": 64, "temperature": 0.2, "classifier": "cosine"},
    "er-ace": {"replay": 64, "classifier": "linear"},
    "scr": {"replay": 64, "temperature": 0.1, "review": True},
    "derpp": {"replay": 64, "alpha": 0.2, "beta": 1.0},
    "gsa": {"mix": 64, "current": 0},
    "gdumb": {"optimizer": "sgd", "lr": 0.05, "weight_decay": 1e-6, "epochs": 256, "fit_batch": 16},
}


def test_official_presets_are_those_of_their_sources():
    found = {
        info.key: info.learner.presets["official"].settings
        for info in registry.methods()
        if "official" in info.learner.presets
    }
    assert found == OFFICIAL


@pytest.mark.parametrize("key", DEFAULTS)
def test_defaults_are_the_comparable_setting(key):
    expected = {**COMMON, **DEFAULTS[key]}
    params = registry.get(key).learner().get_params()
    assert {name: params[name] for name in expected} == expected
