import numpy as np
from sklearn.base import clone
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from tiny_encoders import photo

from onepass import encoders
from onepass.sklearn import Encoder


def test_an_encoder_is_a_transformer_of_a_pipeline(tiny):
    batch = [photo(seed) for seed in range(8)]
    expected = encoders.Encoder("efficientnet-lite0@32").encode(batch).numpy()
    transformer = Encoder("efficientnet-lite0@32")
    assert np.array_equal(transformer.transform(batch), expected)
    assert np.array_equal(clone(transformer).fit_transform(batch), expected)
    labels = np.array([0, 1] * 4)
    model = make_pipeline(transformer, RidgeClassifier()).fit(batch, labels)
    direct = RidgeClassifier().fit(expected, labels)
    assert np.array_equal(model.predict(batch), direct.predict(expected))
    assert np.isfinite(cross_val_score(clone(model), batch, labels, cv=2)).all()
