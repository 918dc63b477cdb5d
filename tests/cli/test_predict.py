"""`onepass predict` classifies images with a finished run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from command import JOB, Done, onepass
from PIL import Image

import onepass as package
from onepass.runs.execute import run_job


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model")
    return Path(onepass("run", "er", "--json", "--out", out).record["out"]) / "checkpoint.pt"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the first 40 test digits as PNG files, into two folders."""
    folder = tmp_path_factory.mktemp("images")
    for index, pixels in enumerate(package.load("digits").test_x[:40, 0].numpy()):
        path = folder / ("few" if index < 10 else "many") / f"{index:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    (folder / "notes.txt").write_text("not an image")
    return folder


def predicted(done: Done) -> list[tuple[str, str, float]]:
    assert done.status == 0, done.err
    lines = [line.split("\t") for line in done.out.splitlines()]
    return [(path, label, float(score)) for path, label, score in lines]


def test_predict_agrees_with_the_learner_on_the_same_pixels(model: Path, images: Path) -> None:
    learner, data = package.open(model), package.load("digits")
    labels = learner.predict(data.test_x[:40])
    scores = learner.scores(data.test_x[:40]).softmax(dim=1).max(dim=1).values
    found = predicted(onepass("predict", model, images))
    assert [Path(path).stem for path, _, _ in found] == [f"{index:03}" for index in range(40)]
    assert all(Path(path).is_relative_to(images) for path, _, _ in found)
    assert [label for _, label, _ in found] == [data.class_names[label] for label in labels]
    assert [score for _, _, score in found] == pytest.approx(scores.tolist(), abs=1e-4)
    hits = (labels == data.test_y[:40]).double().mean()
    assert hits > 0.7


def test_predict_prints_json_if_asked(model: Path, images: Path) -> None:
    plain = predicted(onepass("predict", model, images))
    records = onepass("predict", model, images, "--json").records
    assert all(set(record) == {"path", "label", "score"} for record in records)
    assert [(r["path"], r["label"], round(r["score"], 4)) for r in records] == plain


def test_predict_takes_one_image(model: Path, images: Path) -> None:
    image = images / "few/003.png"
    assert predicted(onepass("predict", model, image)) == [
        entry for entry in predicted(onepass("predict", model, images)) if entry[0] == str(image)
    ]


def test_images_of_other_sizes_and_modes_are_fitted(
    model: Path, images: Path, tmp_path: Path
) -> None:
    (_, label, score) = predicted(onepass("predict", model, images / "few/001.png"))[0]
    with Image.open(images / "few/001.png") as picture:
        picture.convert("RGB").save(tmp_path / "a.png")
        picture.convert("P").save(tmp_path / "b.gif")
        picture.convert("RGBA").save(tmp_path / "c.webp", lossless=True)
        picture.resize((64, 64)).save(tmp_path / "d.bmp")
    found = predicted(onepass("predict", model, tmp_path))
    assert [item[1] for item in found] == [label] * 4
    assert [item[2] for item in found[:3]] == pytest.approx([score] * 3, abs=0.01)


def test_images_with_sixteen_bits_a_pixel_are_scaled_and_not_cut_off(
    model: Path, images: Path, tmp_path: Path
) -> None:
    (_, label, score) = predicted(onepass("predict", model, images / "few/001.png"))[0]
    with Image.open(images / "few/001.png") as picture:
        sixteen = np.asarray(picture).astype(np.uint16) * 257
        Image.fromarray(sixteen).save(tmp_path / "deep.png")
    (found,) = predicted(onepass("predict", model, tmp_path))
    assert found[1:] == (label, pytest.approx(score, abs=0.01))


def test_predict_prints_class_names(tmp_path: Path) -> None:
    data = package.load("synthetic")
    model = Path(run_job(JOB, tmp_path / "runs").out) / "checkpoint.pt"
    pixels = data.test_x[::20].permute(0, 2, 3, 1).numpy()
    (tmp_path / "images").mkdir()
    for index, item in enumerate(pixels):
        Image.fromarray(item).save(tmp_path / f"images/{index}.png")
    labels = package.open(model).predict(data.test_x[::20])
    found = predicted(onepass("predict", model, tmp_path / "images"))
    assert [name for _, name, _ in found] == [f"class{label}" for label in labels]


def test_predict_takes_a_learner_that_was_saved(images: Path, tmp_path: Path) -> None:
    data = package.load("digits")
    learner = package.ER(memory=20)
    learner.learn(data.train_x[:20], data.train_y[:20] + 100)
    learner.save(tmp_path / "model.pt")
    labels = learner.predict(data.test_x[:10])
    found = predicted(onepass("predict", tmp_path / "model.pt", images / "few"))
    assert [name for _, name, _ in found] == [str(int(label)) for label in labels]


def test_a_learner_of_vectors_says_that_it_takes_no_images(images: Path, tmp_path: Path) -> None:
    learner = package.ER(memory=20)
    learner.learn(torch.randn(4, 5), torch.tensor([0, 1, 0, 1]))
    learner.save(tmp_path / "model.pt")
    done = onepass("predict", tmp_path / "model.pt", images)
    assert done.status == 2
    assert "images" in done.error
    assert "onepass.open" in done.error
