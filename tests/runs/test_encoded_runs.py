"""Runs on the features of an encoder: computed once, part of the run's identity."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image

from onepass.base.errors import DataError
from onepass.encoders import Encoder
from onepass.encoders import encoder as encoder_module
from onepass.encoders.cache import encoded_dataset
from onepass.learning.encoding import shared_encoder
from onepass.runs.execute import run_job
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job

LITE0, LITE1 = "efficientnet-lite0@32", "efficientnet-lite1@32"


@pytest.fixture(autouse=True)
def fresh(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    shared_encoder.cache_clear()
    yield
    shared_encoder.cache_clear()


@pytest.fixture
def photos(tmp_path):
    for label, colour in enumerate([(250, 20, 20), (20, 250, 20), (20, 20, 250), (240, 240, 20)]):
        folder = tmp_path / "photos" / f"class{label}"
        folder.mkdir(parents=True)
        for index in range(10):
            size = (30 + index, 50 - index)  # photos of any size
            Image.new("RGB", size, tuple(min(255, c + index) for c in colour)).save(
                folder / f"{index}.png"
            )
    return tmp_path / "photos"


def job(photos, method="ncm", encoder=LITE0, **more):
    settings = {"encoder": encoder, **more.pop("settings", {})}
    return Job(method, str(photos), tasks=2, test_fraction=0.2, settings=settings, memory=8, **more)


@pytest.mark.parametrize("method", ["ncm", "er"])
def test_photos_are_learned_by_any_method(photos, tmp_path, method):
    result = run_job(job(photos, method), tmp_path / "runs")
    assert result.samples == [[8] * 4, [2] * 4]
    if method == "ncm":
        assert result.accuracy > 60  # colours; chance is 25
    else:
        assert result.memory_bytes == 8 * (1280 * 4 + 8)  # features and labels


def test_features_are_computed_once_and_the_cache_is_checked_by_content(
    photos, tmp_path, monkeypatch
):
    calls = []
    real = encoder_module.Encoder.encode
    monkeypatch.setattr(
        encoder_module.Encoder,
        "encode",
        lambda self, batch, *rest, **more: (
            calls.append(len(batch)) or real(self, batch, *rest, **more)
        ),
    )
    first = RunResources().with_fingerprint(job(photos))
    assert sum(calls) == 40
    assert RunResources().with_fingerprint(job(photos, "er")).data_sha256 == first.data_sha256
    assert sum(calls) == 40
    Image.new("RGB", (40, 40), "white").save(photos / "class0" / "0.png")
    assert RunResources().with_fingerprint(job(photos)).data_sha256 != first.data_sha256
    assert sum(calls) == 80


def test_the_encoder_is_part_of_the_identity(photos):
    resources = RunResources()
    made = [job(photos), job(photos, encoder=LITE1), job(photos, encoder=f"{LITE0}+mirror")]
    made = [resources.with_fingerprint(one) for one in made]
    assert len({one.identity for one in made}) == 3
    assert len({one.data_sha256 for one in made}) == 3
    assert "encoder=efficientnet-lite1@32" in str(made[1].variant)


def test_a_run_goes_on_from_its_checkpoint(photos, tmp_path):
    whole = run_job(job(photos), tmp_path / "whole")
    stopped = run_job(job(photos), tmp_path / "runs", checkpoint=1)
    folder = Path(stopped.out)
    (folder / "result.json").unlink()
    again = run_job(job(photos), tmp_path / "runs", resume=True)
    assert again.state_sha256 == whole.state_sha256
    assert json.loads((folder / "run.json").read_text())["learner"]["encoder"] == LITE0


def test_a_named_dataset_is_encoded_under_its_name():
    found = encoded_dataset("digits", shared_encoder(LITE0, "cpu"))
    assert found.name == "digits" and found.train_x.shape == (1442, 1280)
    assert found.class_names[:2] == ("0", "1")
    again = encoded_dataset("digits", shared_encoder(LITE0, "cpu"))
    assert torch.equal(found.train_x, again.train_x)


def test_two_that_need_the_same_features_compute_them_once(photos, monkeypatch):
    encoded = []
    real = encoder_module.Encoder.encode

    def slow(self, batch, *rest, **more):
        encoded.append(len(batch))
        time.sleep(0.2)
        return real(self, batch, *rest, **more)

    monkeypatch.setattr(encoder_module.Encoder, "encode", slow)
    encoders = [Encoder(LITE0, "cpu") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(lambda it: encoded_dataset(str(photos), it, test_fraction=0.2), encoders)
        )
    assert sum(encoded) == 40
    assert torch.equal(found[0].train_x, found[1].train_x)


def test_a_damaged_photo_is_named_with_what_leaves_it_out(photos, tmp_path):
    (photos / "class1" / "3.png").write_bytes(b"\x89PNG but no more")
    with pytest.raises(DataError, match=r"3\.png") as found:
        run_job(job(photos), tmp_path / "runs")
    assert "onepass embed --skip-damaged" in found.value.__notes__[0]
    assert not (tmp_path / "runs").exists()
