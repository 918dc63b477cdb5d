"""Tests averages, distillation and repeats together: the contract, files, refused settings, and the
command. The contract tests every method. `test_averaged.py`, `test_taught.py` and `test_repeats.py`
test each feature alone."""

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from command import onepass as command
from command import refused
from label_vectors import register
from tiny_learners import BOUNDARY, learned, small

import onepass
from onepass import ER, GSA, InputError
from onepass.base.errors import UnknownNameError
from onepass.learning import registry
from onepass.learning.traits import Traits
from onepass.tools.checks import CHECKS, check_method

TAUGHT = {"average": "growing", "distil": 1.0, "distil_raw": True, "repeats": 2}

# ---- the contract of methods with all of it by default


@dataclass(kw_only=True, eq=False)
class TaughtER(ER):
    average: float | str | None = "growing"
    distil: float = 1.0
    distil_raw: bool = True
    repeats: int = 2


@dataclass(kw_only=True, eq=False)
class TaughtGSA(GSA):
    average: float | str | None = 0.9
    distil: float = 1.0
    repeats: int = 3


def test_a_step_with_distillation_stays_on_the_device():
    CHECKS["the_step_stays_on_the_device"](TaughtER)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TaughtER, TaughtGSA])
def test_the_whole_contract_is_kept_with_distillation_and_repeats(kind, monkeypatch):
    register(monkeypatch, kind)
    outcome = check_method(kind)
    # these methods are defined here
    assert not outcome.failed.keys() - {"the_file_explains_itself"}, outcome.failed


# ---- files, snapshots, bytes


LIVES = [range(5), range(5), BOUNDARY, range(3, 8), range(5, 8), BOUNDARY, range(10, 20), range(20)]


def pictures(items):
    """Returns colour images with these labels."""
    source = torch.Generator().manual_seed(2)
    for item in items:
        if item == BOUNDARY:
            yield item
        else:
            shape = (len(item), 3, 6, 6)
            x = torch.randint(256, shape, generator=source, dtype=torch.uint8)
            yield x, torch.tensor(list(item))


def on_pictures(key):
    """Returns a small learner with all of these features."""
    kind = registry.get(key).learner
    can = {name: value for name, value in TAUGHT.items() if name not in kind.traits.unsupported}
    return small(kind, net="mlp", augment="crop-grey", lr=1e-3, **kind.traits.quick, **can)


@pytest.mark.parametrize("key", ["er", "gsa", "ocm"])
def test_it_is_saved_and_resumes_exactly(key, tmp_path):
    """The head grows after the file was opened."""
    lives = list(pictures(LIVES))
    uninterrupted, stopped = learned(on_pictures(key), lives), learned(on_pictures(key), lives[:4])
    stopped.save(tmp_path / "learner.pt")
    opened = onepass.open(tmp_path / "learner.pt", device="cpu")
    assert opened.get_params() == stopped.get_params()
    assert opened.state_sha256() == stopped.state_sha256()
    learned(opened, lives[4:])
    assert opened.trainer.distillation.averaged.model.head.capacity == 32
    assert opened.state_sha256() == uninterrupted.state_sha256()
    x = lives[-1][0]
    assert torch.equal(opened.scores(x), uninterrupted.scores(x))


@pytest.mark.parametrize("key", ["er", "scr", "co2l", "bic"])
def test_files_without_the_memory_and_snapshots_predict_with_the_average(key, tmp_path):
    lives = list(pictures(LIVES))
    learner, x = learned(on_pictures(key), lives[:-1]), lives[-1][0]
    by_average = learner.scores(x)
    with torch.no_grad():  # the network itself would predict otherwise
        for parameter in learner.model.parameters():
            parameter.mul_(0.5)
    learner._scorer = None
    learner.save(tmp_path / "learner.pt", memory=False)
    assert torch.equal(onepass.open(tmp_path / "learner.pt", device="cpu").scores(x), by_average)
    assert torch.equal(learner.snapshot().scores(x), by_average)


# ---- refused settings


DECAY = "a decay in [0, 1), growing, arrivals, or none"
RULE = "a number or growing or arrivals or none"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"average": 1.0}, f"average must be {DECAY}, not 1.0"),
        ({"average": -0.1}, f"average must be {DECAY}, not -0.1"),
        ({"average": math.nan}, f"average must be {RULE}, not nan"),
        ({"average": "slow"}, f"average must be {RULE}, not 'slow'"),
        ({"average": True}, f"average must be {RULE}, not True"),
        ({"average": 0.9, "distil_from": 2, "distil": 1}, f"distil_from must be {DECAY}, not 2"),
        ({"average": 0.9, "distil_from": 0.9}, "distil_from must be none where distil is 0"),
        ({"average": 0.9, "distil": -1}, "distil must be zero or more, not -1"),
        ({"distil": 1}, "distil must be 0 where there is no average to teach"),
        ({"distil_temperature": 0}, "distil_temperature must be positive, not 0"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"repeats": 1.5}, "repeats must be a whole number, not 1.5"),
    ],
)
def test_contradictory_settings_are_refused(settings, says):
    with pytest.raises(InputError) as caught:
        ER(**settings)
    assert str(caught.value).startswith(f"er: {says}")


CANNOT = {
    "gdumb": {"average": 0.9, "distil": 1.0, "repeats": 2, "norms": "memory"},
    "scr": {"distil": 1.0, "norms": "memory"},
    "co2l": {"distil": 1.0, "norms": "memory"},
    "il2a": {"distil": 1.0},
    "bic": {"norms": "memory"},
}


def test_these_methods_do_not_support_all_of_it():
    found = {info.key: set(info.learner.traits.unsupported) for info in registry.methods()}
    assert {key: names for key, names in found.items() if names} == {
        key: set(settings) for key, settings in CANNOT.items()
    }


@pytest.mark.parametrize(
    ("key", "name"), [(key, name) for key, settings in CANNOT.items() for name in settings]
)
def test_a_method_says_why_it_does_not_support_a_setting(key, name):
    kind = registry.get(key).learner
    average = {"average": 0.9} if "average" not in kind.traits.unsupported else {}
    with pytest.raises(InputError) as caught:
        kind(**{**average, name: CANNOT[key][name]})
    usual = {"average": "none", "distil": "0.0", "repeats": "1", "norms": "running"}[name]
    assert str(caught.value).startswith(
        f"{key}: {name} must be {usual}: {kind.traits.unsupported[name]}, not"
    )
    assert len(kind.traits.unsupported[name].split()) > 4


@pytest.mark.parametrize(
    ("name", "value", "usual"),
    [
        ("mirror_scores", True, "false"),
        ("distil_raw", True, "false"),
        ("distil_from", 0.9, "none"),
        ("gap", 3, "10"),
        ("optimizer", "sgd", "adam"),
    ],
)
def test_a_users_method_can_name_any_unsupported_setting(name, value, usual):
    @dataclass(kw_only=True, eq=False)
    class Rigid(ER):
        key = "rigid"
        traits: ClassVar[Traits] = Traits(unsupported={name: "the method is made for this alone"})

    assert getattr(Rigid(memory=20), name) == Rigid.__dataclass_fields__[name].default
    with pytest.raises(InputError, match=f"^rigid: {name} must be {usual}: the method is made"):
        Rigid(memory=20, **{name: value})


def test_an_unsupported_setting_must_exist():
    @dataclass(kw_only=True, eq=False)
    class Misspelt(ER):
        key = "misspelt"
        traits: ClassVar[Traits] = Traits(unsupported={"mirror_score": "of this method"})

    with pytest.raises(UnknownNameError, match=r"of 'misspelt' 'mirror_score'\. Did you"):
        Misspelt(memory=20)


# ---- the command


def test_a_run_by_the_command_reports_its_cost(tmp_path):
    settings = ("average=growing", "distil=1", "repeats=2")
    chosen = [value for setting in settings for value in ("--set", setting)]
    where = ("--dataset", "synthetic", "--batch", 40, "--out", tmp_path / "runs")
    done = command("run", "er", *where, *chosen, "--json")
    assert done.status == 0, done.err
    (file,) = (tmp_path / "runs").rglob("result.json")
    result = json.loads(file.read_text())
    per_sample = 2 * (40 + 64) / 40  # two steps per batch, of the network and the average
    assert result["trained_per_sample"] == result["scored_per_sample"] == per_sample
    assert result["settings"]["average"] == "growing"
    assert result["settings"]["repeats"] == 2
    assert result["copy_bytes"] > 0
    assert result["accuracy"] > 50


def test_the_command_names_an_unsupported_setting():
    message = refused(
        "run", "scr", "--dataset", "synthetic", "--set", "average=0.9", "--set", "distil=1"
    )
    assert "scr: distil must be 0.0: only features are trained, so there are no logits" in message
