"""Tests of settings: types, ranges, messages and reading from text."""

from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from torch import nn

import onepass
from onepass import InputError, UnknownNameError
from onepass.base.settings import (
    construct,
    describe_settings,
    expect_type,
    parse_setting,
    parse_settings,
    setting_names,
)
from onepass.learning.memory_contents import memory_bytes
from onepass.runs.spec import Job

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)
Choice = Literal["mix", "all"]
Numbers = tuple[float, ...] | None

FITS = [
    (3, int),
    (-3, int),
    (3, float),
    (3.5, float),
    (True, bool),
    ("mix", Choice),
    ("auto", str | nn.Module),
    (nn.Identity(), str | nn.Module),
    (None, int | None),
    (4, int | None),
    ((0.5, 1), Numbers),
    (None, Numbers),
]
MISFITS = [
    (3.0, int, "a whole number"),
    (True, int, "a whole number"),
    ("3", int, "a whole number"),
    (None, int, "a whole number"),
    (True, float, "a number"),
    ("0.1", float, "a number"),
    (None, float, "a number"),
    (1, bool, "true or false"),
    ("true", bool, "true or false"),
    ("none", Choice, "mix or all"),
    (3, str | nn.Module, "a name or a Module"),
    (2.5, int | None, "a whole number or none"),
    ([0.5], Numbers, "a tuple, each a number or none"),
    (("a",), Numbers, "a tuple, each a number or none"),
    (0.5, Numbers, "a tuple, each a number or none"),
]


@pytest.mark.parametrize(("value", "annotation"), FITS)
def test_a_value_of_the_annotated_type_passes(value, annotation):
    assert expect_type("size", value, annotation) is None


@pytest.mark.parametrize(("value", "annotation", "wanted"), MISFITS)
def test_a_value_of_another_type_is_refused_with_the_expected_type(value, annotation, wanted):
    with pytest.raises(InputError) as caught:
        expect_type("size", value, annotation)
    assert str(caught.value) == f"size must be {wanted}, not {value!r}"


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("12", int, 12),
        ("5e-4", float, 5e-4),
        ("1", float, 1),
        ("true", bool, True),
        ("False", bool, False),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("all", Choice, "all"),
        ("none", Literal["crop-grey", "none"], "none"),
        ("mlp", str | nn.Module, "mlp"),
        ("12", str | nn.Module, "12"),
        ("(0.5, 0.25)", Numbers, (0.5, 0.25)),
        ("0.5, 0.25", Numbers, (0.5, 0.25)),
        ("(0.5,)", Numbers, (0.5,)),
    ],
)
def test_text_becomes_a_value_of_the_annotated_type(text, annotation, value):
    found = parse_setting("size", text, annotation)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "annotation"),
    [
        ("fast", float),
        ("1e3", int),
        ("1", bool),
        ("", int),
        ("some", Choice),
        ("__import__('os').getcwd()", int),
        ("{[]: 1}", float),
        ("0.5", Numbers),
    ],
)
def test_text_of_another_type_is_refused(text, annotation):
    with pytest.raises(InputError, match=r"^size must be "):
        parse_setting("size", text, annotation)


@PROPERTY
@given(
    st.one_of(st.text(max_size=12), st.text("()[]{},:0123456789.e-+'\"_j", max_size=12)),
    st.sampled_from([int, float, bool, Choice, int | None, Numbers]),
)
def test_any_text_is_a_value_that_passes_or_an_input_error(text, annotation):
    try:
        value = parse_setting("size", text, annotation)
    except InputError as problem:
        assert str(problem).startswith("size must be ")
    else:
        assert expect_type("size", value, annotation) is None


@PROPERTY
@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()))
def test_printed_values_are_read_back(value):
    found = parse_setting("size", str(value), type(value))
    assert found == value
    assert type(found) is type(value)


# ---- the constructor is the configuration


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": float("nan")}, "lr must be"),
        ({"lr": float("inf")}, "lr must be"),
        ({"weight_decay": -1.0}, "weight_decay must be zero or more"),
        ({"weight_decay": float("nan")}, "weight_decay must be"),
        ({"memory": -1}, "memory must be zero or more"),
        ({"memory": 10.0}, "memory must be a whole number"),
        ({"replay": 0}, "replay must be at least 1"),
        ({"gap": 0}, "gap must be at least 1"),
        ({"optimizer": "lion"}, "optimizer must be adam or adamw or sgd"),
        ({"head": "loose"}, "head must be trained or frozen"),
        ({"mirror": 1}, "mirror must be true or false"),
        ({"mean": (0.5,)}, "mean must be given together with std"),
        ({"std": (0.5,)}, "mean must be given together with std"),
        ({"mean": (0.5,), "std": (0.0,)}, "std must be positive"),
        ({"mean": (), "std": ()}, "must be"),
        ({"mean": (float("nan"),), "std": (1.0,)}, "mean must be"),
    ],
)
def test_a_learner_refuses_a_setting_that_makes_no_sense(chosen, said):
    with pytest.raises(InputError, match=said) as refusal:
        onepass.ER(**chosen)
    assert str(refusal.value).startswith("er: ")


def test_attributes_that_are_not_settings_can_be_changed():
    class Counting(onepass.ER):
        drawn: ClassVar[int] = 0

        def step(self, x, y):
            self.drawn += 1
            return super().step(x, y)

    learner = Counting(memory=5, device="cpu")
    for _ in range(3):
        learner.learn(np.zeros((4, 3)), [0, 1, 0, 1])
    assert learner.drawn == 3 and Counting.drawn == 0


def test_settings_are_fixed_once_they_are_in_use():
    """The optimiser, the memory and a captured step are built from them: a changed value would be
    saved but have no effect."""
    learner = onepass.ER(memory=5, device="cpu")
    learner.lr = 0.5
    learner.learn(np.zeros((4, 3)), [0, 1, 0, 1])
    for name in setting_names(learner):
        before = getattr(learner, name)
        with pytest.raises(InputError, match=f"{name} cannot be changed"):
            setattr(learner, name, before)
    assert learner.lr == 0.5
    learner.note = "anything else can be"


def test_the_error_for_an_unknown_setting_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match=r"setting of 'er' 'memry'\. Did you mean 'memory'"):
        construct(onepass.ER, memry=3)


def test_a_learner_shows_the_settings_it_was_given():
    learner = onepass.ER(memory=7, lr=0.5)
    params = learner.get_params()
    assert params["memory"] == 7
    assert params["lr"] == 0.5
    assert set(params) == set(setting_names(onepass.ER))
    assert onepass.ER(**params).get_params() == params


@pytest.mark.parametrize(
    "method", onepass.learning.registry.methods(), ids=lambda setting: setting.key
)
def test_every_setting_of_a_method_is_explained_and_its_default_can_be_given_as_text(method):
    known = describe_settings(method.learner)
    assert {setting.name for setting in known} == set(setting_names(method.learner))
    assert [setting.name for setting in known if not setting.meaning or not setting.type] == []
    assert len({setting.meaning for setting in known}) == len(known), "each in a line of its own"
    texts = {setting.name: setting.default for setting in known}
    assert parse_settings(method.learner, texts) == method.learner().get_params()


@pytest.mark.parametrize(
    "method", onepass.learning.registry.methods(), ids=lambda learner: learner.key
)
def test_numbers_of_numpy_count_as_numbers(method, tmp_path):
    """The learners are equal to the bit and can be saved."""
    usual = {
        name: value
        for name, value in method.learner().get_params().items()
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    }
    kinds = {int: np.int64, float: np.float64, str: np.str_}
    numpys = {name: kinds[type(value)](value) for name, value in usual.items()}
    x = np.random.default_rng(0).normal(size=(8, 3))
    states = []
    for chosen in (usual, numpys):
        learner = method.learner(**{**chosen, "device": "cpu"})
        for labels in ([0, 1] * 4, [2, 3] * 4):
            learner.learn(x, labels)
            learner.new_task()
        learner.predict(x)
        states.append(learner.state_sha256())
    assert states[0] == states[1]
    for name, saved in (("taught.pt", learner), ("fresh.pt", method.learner(**numpys))):
        saved.save(tmp_path / name)
        again = onepass.open(tmp_path / name, device="cpu")
        assert again.get_params() == {**saved.get_params(), "device": "cpu"}
        assert all(type(again.get_params()[name]) in kinds for name in usual)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16, np.int32])
def test_small_numbers_of_numpy_do_not_overflow(kind):
    learner = onepass.ER(memory=kind(100), replay=kind(64), device="cpu")
    learner.learn(np.zeros((8, 3)), [0, 1] * 4)
    assert memory_bytes(learner) == 100 * (3 * 4 + 8)


def test_plain_values_are_stored_as_the_same_object():
    mean = (0.1, 0.2)
    assert onepass.ER(mean=mean, std=(1.0, 1.0)).mean is mean
    assert onepass.ER(mean=(np.float32(0.5),), std=(np.float64(1),)).get_params()["mean"] == (0.5,)


def test_invalid_numbers_of_numpy_are_refused():
    for chosen in ({"memory": np.float64(5)}, {"lr": np.float32("nan")}, {"gap": np.bool_(True)}):
        with pytest.raises(InputError):
            onepass.ER(**chosen)


# ---- whole numbers for settings that are floats


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"lr": 1}, {"lr": 1.0}),
        ({"lr": np.int64(1)}, {"lr": 1.0}),
        ({"mean": (0, 1), "std": (1, 2.5)}, {"mean": (0.0, 1.0), "std": (1.0, 2.5)}),
        ({"average": 0}, {"average": 0.0}),
        ({"repeats": 2, "mirror": True}, {"repeats": 2, "mirror": True}),
    ],
)
def test_a_whole_number_for_a_setting_that_is_a_float_becomes_one(given, kept):
    params = onepass.ER(memory=4, **given).get_params()
    assert {name: repr(params[name]) for name in kept} == {
        name: repr(value) for name, value in kept.items()
    }


def test_a_scale_that_is_a_whole_number_trains():
    x, y = torch.rand(8, 5), torch.arange(8) % 2
    whole, point = (onepass.LUCIR(memory=4, scale=scale, device="cpu") for scale in (10, 10.0))
    for learner in (whole, point):
        learner.learn(x, y)
    assert whole.state_sha256() == point.state_sha256()
    assert clone(whole).scale == 10.0


def test_a_whole_number_for_a_float_is_the_same_run():
    jobs = [Job("lucir", settings={"scale": text}) for text in ("10", "10.0", "1e1")]
    names = {(job.with_data(onepass.load("digits")).identity, job.folder_name) for job in jobs}
    assert len(names) == 1
