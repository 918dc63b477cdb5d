"""Learners with an encoder: the same features whichever way they come, and files that know them."""

import numpy as np
import pytest
import torch

import onepass
from onepass.base.errors import CheckpointError, InputError, UnknownNameError
from onepass.functional.grid import STEPS, standardise
from onepass.learning import encoding
from onepass.learning.encoding import shared_encoder

TEXTS = ["a red ball", "a blue ball", "the stock fell", "the stock rose", "a red kite", "they fell"]
LABELS = ["toys", "toys", "news", "news", "toys", "news"]
HASH = "text:hash"


@pytest.fixture(autouse=True)
def fresh_encoders():
    shared_encoder.cache_clear()
    yield
    shared_encoder.cache_clear()


def learned(method=onepass.RanPAC, **settings):
    learner = method(encoder=HASH, **settings)
    learner.learn(TEXTS, LABELS)
    return learner


def narrow(**settings):
    return learned(onepass.RanPAC, width=32, **settings)


def test_texts_are_learned_and_predicted_as_features():
    learner = learned(onepass.NCM)
    assert learner.predict(["a green ball", "the stock"]).tolist() == ["toys", "news"]
    features = shared_encoder(HASH, "auto").encode(TEXTS)
    plain = onepass.NCM()
    plain.learn(features, LABELS)
    assert torch.equal(plain.scores(features), learner.scores(TEXTS))


def test_features_that_were_computed_before_give_the_same_sums():
    features, again = (
        shared_encoder(HASH, "auto").encode(TEXTS),
        onepass.RanPAC(encoder=HASH, width=32),
    )
    again.learn(features.numpy(), LABELS)
    assert again.sums_sha256() == narrow().sums_sha256()
    with pytest.raises(InputError, match="the encoder text:hash has 2048 features, not 3"):
        again.learn(torch.zeros(2, 3), ["toys", "toys"])


def test_a_replay_method_keeps_standardised_features():
    learner = learned(onepass.ER, memory=10)
    features = shared_encoder(HASH, "auto").encode(TEXTS)
    assert torch.equal(learner.kept.x, standardise(features) / STEPS)
    assert learner.predict(TEXTS).shape == (6,)


def test_samples_are_unlearned_and_merged_as_texts():
    one, other = narrow(), onepass.RanPAC(encoder=HASH, width=32)
    whole = one.sums_sha256()
    one.unlearn(TEXTS[:2], LABELS[:2])
    other.learn(TEXTS[:2], LABELS[:2])
    assert one.sums_sha256() != whole
    assert other.merge(one).sums_sha256() == whole


def test_a_snapshot_encodes_too():
    learner = learned(onepass.NCM)
    frozen, before = learner.snapshot(), learner.scores(TEXTS)
    learner.learn(["a red stock"], ["odd"])
    assert torch.equal(frozen.scores(TEXTS), before)


def test_a_file_holds_the_encoders_name_and_hash_and_no_weights(tmp_path):
    learner = narrow()
    learner.save(tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    assert content["encoder"] == shared_encoder(HASH, "auto").identity()
    opened = onepass.open(tmp_path / "model.pt")
    assert torch.equal(opened.scores(TEXTS), learner.scores(TEXTS))
    opened.learn(["a kite"], ["toys"])
    learner.learn(["a kite"], ["toys"])
    assert opened.sums_sha256() == learner.sums_sha256()


def changed(path, **entries):
    content = torch.load(path, weights_only=True)
    content["encoder"] |= entries
    torch.save(content, path)
    return path


def test_another_encoder_of_the_same_name_is_refused(tmp_path):
    narrow().save(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="another encoder of the name text:hash: its hash be"):
        onepass.open(changed(tmp_path / "model.pt", sha256="0" * 64))
    with pytest.raises(CheckpointError, match="another encoder"):
        onepass.open(changed(tmp_path / "model.pt", dimension=7))


@pytest.mark.parametrize("value", [None, [1], 7])
def test_a_damaged_identity_is_refused(tmp_path, value):
    narrow().save(tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    content["encoder"] = value
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="encoder"):
        onepass.open(tmp_path / "model.pt")


def test_a_file_cannot_import_an_encoder_of_a_strangers(tmp_path):
    narrow().save(tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    content["settings"]["encoder"] = "os:system"
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="'os:system', which is code"):
        onepass.open(tmp_path / "model.pt")


def test_an_unknown_encoder_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match=r"Did you mean 'efficientnet-lite\d'"):
        onepass.NCM(encoder="efficientnet-lite")


def test_arrays_of_images_and_vectors_are_told_apart(tiny):
    images = torch.randint(256, (4, 3, 40, 30), dtype=torch.uint8)
    learner = onepass.NCM(encoder="efficientnet-lite0@32")
    learner.learn(images, [0, 0, 1, 1])
    features = shared_encoder("efficientnet-lite0@32", "auto").encode(images)
    assert torch.equal(learner.scores(images), learner.scores(features))
    upright = list(images.numpy()[:, :, ::-1])  # views with negative strides
    assert learner.scores(upright).shape == (4, 2)


class Elsewhere:
    """An encoder that computes the same function on another machine."""

    def __init__(self, encoder, **where):
        self.encoder, self.where = encoder, where

    def __getattr__(self, name):
        return getattr(self.encoder, name)

    def identity(self):
        return self.encoder.identity() | {"engine": "torch", "processor": "one"} | self.where


def test_features_of_another_engine_need_approximate(tiny, monkeypatch):
    real = shared_encoder("efficientnet-lite0@32", "auto")
    here, there = Elsewhere(real), Elsewhere(real, processor="another")
    x = np.random.default_rng(0).integers(256, size=(6, 3, 32, 32), dtype=np.uint8)
    y = [0, 1, 0, 1, 0, 1]

    def on(machine):
        monkeypatch.setattr(encoding, "shared_encoder", lambda *_: machine)
        monkeypatch.setattr("onepass.learning.learner.shared_encoder", lambda *_: machine)
        monkeypatch.setattr("onepass.learning.closed_form.shared_encoder", lambda *_: machine)

    def made(machine):
        on(machine)
        learner = onepass.NCM(encoder="efficientnet-lite0@32")
        learner.learn(x, y)
        return learner

    one, other = made(here), made(there)
    before = one.sums_sha256()
    with pytest.raises(InputError, match=r"come from torch on one, .* approximate=True"):
        one.merge(other)
    assert one.sums_sha256() == before and not one.approximate
    assert one.merge(other, approximate=True).approximate
    assert "approximate" in repr(one)

    mine = made(here)
    on(there)
    with pytest.raises(InputError, match="rounds in another way"):
        mine.unlearn(x[:1], y[:1])
    mine.unlearn(x[:1], y[:1], approximate=True)
    assert mine.approximate and mine.samples == 5
    again = made(here)
    on(there)
    again.learn(x[:1], y[:1])
    assert again.approximate  # other features were added


def test_learners_with_and_without_an_encoder_are_not_merged():
    features, plain = shared_encoder(HASH, "auto").encode(TEXTS), onepass.NCM()
    plain.learn(features, LABELS)
    for one, other in ((plain, learned(onepass.NCM)), (learned(onepass.NCM), plain)):
        with pytest.raises(InputError, match="cannot be merged: encoder is"):
            one.merge(other)
