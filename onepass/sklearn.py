"""`OnePassClassifier`: any method as a scikit-learn classifier. `Encoder`: a transformer.

>>> from sklearn.datasets import load_digits
>>> from sklearn.model_selection import train_test_split
>>> from onepass.sklearn import OnePassClassifier
>>> x, test_x, y, test_y = train_test_split(*load_digits(return_X_y=True), random_state=0)
>>> model = OnePassClassifier("gsa", memory=100, device="cpu").fit(x, y)
>>> bool(model.score(test_x, test_y) > 0.8), model.classes_[:3]
(True, array([0, 1, 2]))
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from onepass import encoders
from onepass.base import inputs
from onepass.base.errors import InputError
from onepass.base.parts import Label
from onepass.base.settings import construct, expect_type
from onepass.learning import registry
from onepass.learning.checkpoint import file
from onepass.learning.learner import Learner

Array = np.ndarray[Any, Any]
FLOATS = (np.float32, np.float64)
EXPECTED_TO_FAIL = {
    "check_methods_subset_invariance": "scores are float32, whose last digits depend on how many "
    "rows are scored at once; probabilities may differ by 2e-7, and the check allows 1e-7"
}
"""Checks of scikit-learn that may fail, each with the reason; for its `expected_failed_checks`."""


class OnePassClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns rows once each, in batches, in the order given.

    After fitting, `learner_` is the learner. Its classes are the labels of `y`, with booleans as 0
    and 1. It saves and predicts like any other learner.

    Parameters
    ----------
    method
        The name of the method; `onepass list methods` lists them.
    memory
        The number of samples that the memory may keep; by default the method's own default.
    batch
        Rows per step.
    image_shape
        (height, width) or (channels, height, width), if each row is an image with pixels from 0 to
        255; by default a row is a vector.
    settings
        Settings of the method by name: `lr`, `seed`, `device`, ...
    """

    def __init__(
        self,
        method: str = "gsa",
        *,
        memory: int | None = None,
        batch: int = 10,
        image_shape: tuple[int, ...] | None = None,
        **settings: Any,
    ) -> None:
        self.method = method
        self.memory = memory
        self.batch = batch
        self.image_shape = image_shape
        self._settings = settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the constructor's arguments, and those settings that were given."""
        return {**super().get_params(deep=deep), **self._settings}

    def set_params(self, **params: Any) -> Self:
        """Sets arguments and settings by name; `fit` raises for one that the method lacks."""
        own = {name: params.pop(name) for name in self._get_param_names() if name in params}
        self._settings = {**self._settings, **params}
        super().set_params(**own)
        return self

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803 - scikit-learn's name
        """Learns all rows with a new learner, each once, in the order given; returns `self`."""
        x, labels = self._checked(X, y, first=True)
        self.learner_ = self._new_learner()
        self.classes_ = _sorted_classes(labels)
        self._teach(x, labels)
        self.learner_.end_task()
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:  # noqa: N803
        """Learns more rows, each once; returns `self`.

        The first call makes the learner, unless `fit` has made it. New classes may come at any
        time. Those in `classes` enter `classes_` at once, even if no row has them yet.
        """
        first = not hasattr(self, "learner_")
        x, labels = self._checked(X, y, first=first)
        known = [] if first else [self.classes_]
        announced = [] if classes is None else [np.asarray(classes)]
        self.classes_ = _sorted_classes(*known, *announced, labels)
        if first:
            self.learner_ = self._new_learner()
        self._teach(x, labels)
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Returns the label with the highest score for each row, (n)."""
        best = self._scores(X).argmax(dim=1).numpy()
        return self.classes_[best]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Returns the softmax of the scores, (n, classes), columns in the order of `classes_`.

        A class without a row so far has the probability 0.
        """
        return self._scores(X).softmax(dim=1).numpy()

    # ---- internals

    def _new_learner(self) -> Learner:
        given = {} if self.memory is None else {"memory": self.memory}
        return construct(registry.get(self.method).learner, **given, **self._settings)

    def _checked(self, X: Any, y: Any, first: bool) -> tuple[Array, Array]:  # noqa: N803
        """Returns samples and labels; raises an error if they or `batch` are invalid.

        With `first`, the number of columns of X is stored; later calls must have the same.
        """
        expect_type("batch", self.batch, int)
        if self.batch < 1:
            raise InputError(f"batch must be at least 1, not {self.batch}")
        inputs.expect_no_mask(X, "X")  # scikit-learn drops a mask
        inputs.expect_no_mask(y, "y")
        x, labels = validate_data(self, X, y, dtype=self._dtypes, reset=first)
        check_classification_targets(labels)
        return self._samples(x), labels

    @property
    def _dtypes(self) -> Any:
        return FLOATS if self.image_shape is None else "numeric"

    def _samples(self, rows: Array) -> Array:
        """Returns the rows as they are, or as images (n, *image_shape) of uint8."""
        if self.image_shape is None:
            return rows
        shape = tuple(self.image_shape)
        if len(shape) not in (2, 3) or math.prod(shape) != rows.shape[1]:
            raise InputError(
                f"image_shape is {shape}, but must be two or three numbers whose product is "
                f"{rows.shape[1]}, the values of a row"
            )
        with np.errstate(invalid="ignore"):  # values that the cast changes are refused below
            pixels = rows.astype(np.uint8)
        if rows.dtype != np.uint8 and not np.array_equal(pixels, rows):
            raise InputError("with image_shape, rows must hold pixels: whole numbers from 0 to 255")
        return pixels.reshape(len(rows), *shape)

    def _teach(self, x: Array, labels: Array) -> None:
        plain = _plain_labels(labels)
        for start in range(0, len(x), self.batch):
            end = start + self.batch
            self.learner_.learn(x[start:end], plain[start:end])

    def _scores(self, X: Any) -> Tensor:  # noqa: N803
        """Returns scores (n, classes), columns in the order of `classes_`.

        A class without a row so far has the score minus infinity.
        """
        check_is_fitted(self)
        inputs.expect_no_mask(X, "X")
        rows = validate_data(self, X, dtype=self._dtypes, reset=False)
        found = self.learner_.scores(self._samples(rows)).double().cpu()
        column = {label: index for index, label in enumerate(_plain_labels(self.classes_))}
        scores = torch.full((len(rows), len(self.classes_)), -math.inf, dtype=torch.float64)
        scores[:, [column[label] for label in self.learner_.classes]] = found
        return scores

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for a pickle, with the learner in the format of `learner.save`."""
        state: dict[str, Any] = super().__getstate__()
        if "learner_" in state:
            state = {**state, "learner_": file.checkpoint_content(self.learner_)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the learner.

        A network or an augmentation function among the settings is passed on, because the
        learner's content does not include it.
        """
        super().__setstate__(state)
        if "learner_" in state:
            net, augment = self._settings.get("net"), self._settings.get("augment")
            self.learner_ = file.learner_from_content(
                state["learner_"],
                f"the pickled {type(self).__name__}",
                device=self._settings.get("device", "auto"),
                net=net if isinstance(net, nn.Module) else None,
                augment=augment if callable(augment) else None,
            )


def _plain_labels(labels: Array) -> list[Label]:
    """Returns labels as a learner takes them: booleans become 0 and 1."""
    return inputs.as_labels(labels.astype(int) if labels.dtype == bool else labels, len(labels))


def _sorted_classes(*labels: Array) -> Array:
    """Returns the distinct labels, sorted; raises InputError if text and numbers are mixed."""
    different = [label for array in labels for label in _plain_labels(np.unique(array))]
    inputs.as_labels(different, len(different))
    return np.unique(np.concatenate(labels))


class Encoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A frozen encoder as a transformer: a batch of photos or texts becomes an array of vectors.

    Nothing is learned from data. The encoder is loaded when it is first used.

    Parameters
    ----------
    name
        The name of an encoder; `onepass list encoders` lists them.
    device
        auto, cpu, mps, cuda or cuda:N.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from onepass.sklearn import Encoder
    >>> model = make_pipeline(Encoder("text:hash"), LogisticRegression())
    >>> mails = ["buy it now", "buy two", "see you at noon", "see you soon"]
    >>> model.fit(mails, ["spam", "spam", "ham", "ham"]).predict(["buy soon", "see it at noon"])
    array(['spam', 'ham'], dtype='<U4')
    """

    def __init__(self, name: str, device: str = "auto") -> None:
        self.name = name
        self.device = device

    def fit(self, x: Any, y: Any = None) -> Self:
        """Loads the encoder."""
        self.encoder_ = encoders.Encoder(self.name, self.device)
        return self

    def transform(self, x: Any) -> Array:
        """Returns the vectors of a batch (n, d) as float32: a list of paths, Pillow images or
        texts, or an array of images."""
        if not hasattr(self, "encoder_"):
            self.fit(x)
        vectors: Array = self.encoder_.encode(x).numpy()
        return vectors

    def __sklearn_is_fitted__(self) -> bool:
        return True  # there is nothing to fit
