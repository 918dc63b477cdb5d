"""Every method works as a scikit-learn classifier: scikit-learn's own checks, and typical uses."""

import pickle

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import onepass
from onepass import InputError, UnknownNameError
from onepass.base.settings import setting_names
from onepass.learning import registry
from onepass.sklearn import EXPECTED_TO_FAIL, OnePassClassifier

FAST = {"er": {"replay": 16}, "gsa": {"mix": 16}, "scr": {"replay": 16}, "ridge": {}}
WORDS = ("owl", "cat", "bee")  # not in alphabetical order


def classifier(method="er", **settings):
    learner = registry.get(method).learner
    kept = {"memory": 30} if "memory" in setting_names(learner) else {}
    return OnePassClassifier(method, device="cpu", **{**kept, **learner.traits.quick, **settings})


def rows(count=30):
    """Returns three well separated classes, one after another."""
    y = np.arange(count) * 3 // count
    return 3 * np.eye(3)[y] + 0.1 * np.random.default_rng(0).normal(size=(count, 3)), y


def words(y):
    return np.array(WORDS)[y]


# ---- scikit-learn's own checks


@parametrize_with_checks(
    [classifier(method, **settings) for method, settings in FAST.items()],
    expected_failed_checks=lambda _: EXPECTED_TO_FAIL,
)
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [classifier(info.key) for info in registry.methods() if info.key not in FAST],
    expected_failed_checks=lambda _: EXPECTED_TO_FAIL,
)
def test_scikit_learns_checks_pass_for_every_method(estimator, check):
    check(estimator)


# ---- learning


def test_rows_are_learned_once_in_their_order_and_in_batches():
    x, y = rows(25)
    fitted = classifier(batch=4, seed=3).fit(x, words(y))
    learner = onepass.ER(memory=30, device="cpu", seed=3)
    for start in range(0, 25, 4):
        learner.learn(x[start : start + 4], words(y[start : start + 4]))
    learner.end_task()
    assert fitted.learner_.state_sha256() == learner.state_sha256()


def test_fit_begins_anew_and_partial_fit_goes_on():
    x, y = rows()
    once, twice = classifier().fit(x, y), classifier().fit(x[:9], y[:9]).fit(x, y)
    assert once.learner_.state_sha256() == twice.learner_.state_sha256()
    assert once.partial_fit(x, y).learner_.steps == 6


def test_classes_may_arrive_at_any_time_or_be_named_before():
    x, y = rows(90)
    model = classifier(lr=0.01)
    for label, named in ((0, None), (1, ["ant"]), (2, None)):
        model.partial_fit(x[y == label], words(y[y == label]), classes=named)
    assert model.classes_.tolist() == ["ant", "bee", "cat", "owl"]
    probabilities = model.predict_proba(x)
    assert (probabilities[:, 0] == 0).all()
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert (model.classes_[probabilities.argmax(axis=1)] == model.predict(x)).all()
    assert model.score(x, words(y)) > 0.9


def test_booleans_are_predicted_as_booleans():
    x, y = rows()
    predicted = classifier(lr=0.01).fit(x, y == 1).predict(x)
    assert predicted.dtype == bool
    assert (predicted == (y == 1)).mean() > 0.9


def test_a_data_frame_may_hold_images_as_rows():
    y = np.arange(40) % 2
    pixels = np.where(y[:, None] == np.repeat([0, 1], 32), 250, 5)  # dark above, dark below
    frame = pandas.DataFrame(pixels, columns=[f"pixel {index}" for index in range(64)])
    names = pandas.Series(y).map({0: "above", 1: "below"})
    model = classifier(image_shape=(8, 8), lr=0.01, augment="none").fit(frame, names)
    assert model.learner_.trainer.shape == (1, 8, 8)
    assert (model.predict(frame) == names).all()
    assert model.n_features_in_ == 64
    assert model.feature_names_in_.tolist() == list(frame.columns)


# ---- settings


def test_a_search_sets_the_method_and_its_settings_inside_a_pipeline():
    x, y = rows(60)
    order = np.random.default_rng(0).permutation(60)
    steps = [("scale", StandardScaler()), ("learn", classifier(replay=8))]
    grid = {"learn__method": ["er", "er-ace"], "learn__lr": [1e-9, 0.01]}
    found = GridSearchCV(Pipeline(steps), grid, cv=2).fit(x[order], y[order])
    assert found.best_params_["learn__lr"] == 0.01
    best = found.best_estimator_["learn"]
    assert type(best.learner_).key == best.method
    assert (best.learner_.lr, best.learner_.replay) == (0.01, 8)
    again = clone(best)
    assert again.get_params() == best.get_params()
    assert not hasattr(again, "learner_")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memroy": 5}, "Did you mean 'memory'"),
        ({"method": "ers"}, "Did you mean 'er'"),
        ({"batch": 0}, "batch must be at least 1"),
        (
            {"image_shape": (2, 2)},
            r"image_shape is \(2, 2\), but .* product is 3, the values of a row",
        ),
        ({"image_shape": (1, 3)}, "whole numbers from 0 to 255"),
    ],
)
def test_fit_refuses_bad_settings(settings, message):
    model = clone(classifier()).set_params(**settings)
    with pytest.raises((InputError, UnknownNameError), match=message):
        model.fit(*rows())


def test_masked_rows_and_labels_are_refused():
    x, y = np.eye(4), np.array([0, 1, 0, 1])
    model = OnePassClassifier("er", device="cpu").fit(np.ma.masked_array(x), y)
    hidden = np.ma.masked_array(x, mask=x > 0)
    with pytest.raises(InputError, match="X has 4 masked elements"):
        model.fit(hidden, y)
    with pytest.raises(InputError, match="X has 4 masked elements"):
        model.predict(hidden)
    with pytest.raises(InputError, match="y has 2 masked elements"):
        model.partial_fit(x, np.ma.masked_array(y, mask=y > 0))


def test_refused_labels_change_nothing():
    x, y = rows()
    model = classifier().partial_fit(x, y)
    before = model.learner_.state_sha256()
    with pytest.raises(InputError, match="all text or all whole numbers"):
        model.partial_fit(x, words(y))
    assert model.learner_.state_sha256() == before
    assert model.classes_.tolist() == [0, 1, 2]


# ---- files


def noisy(samples, rng):
    return samples + 0.1 * torch.randn(samples.shape, generator=rng, device=samples.device)


@pytest.mark.parametrize(
    "own", [{}, {"net": nn.Linear(3, 8)}, {"augment": noisy}], ids=["nothing", "net", "augment"]
)
def test_a_pickled_classifier_goes_on_bit_for_bit(own):
    x, y = rows()
    model = classifier(**own).fit(x, words(y))
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict_proba(x) == model.predict_proba(x)).all()
    for fitted in (model, again):
        fitted.partial_fit(x, words(y))
    assert again.learner_.state_sha256() == model.learner_.state_sha256()


def test_the_learner_inside_is_an_ordinary_learner(tmp_path):
    x, y = rows()
    model = classifier().fit(x, words(y))
    model.learner_.save(tmp_path / "model.pt")
    opened = onepass.open(tmp_path / "model.pt", device="cpu")
    assert (opened.predict(x) == model.predict(x)).all()
