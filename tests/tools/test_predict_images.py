"""`classify` returns a class or a problem for every image file."""

import os

import formats
import numpy as np
import pytest
from child_process import in_child
from command import onepass

from onepass import ER
from onepass.learning.checkpoint import file
from onepass.learning.checkpoint.file import open_learner
from onepass.tools.predict_images import UnreadableImage, classify


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Saves a learner with two classes: dark above, and dark below."""
    x = np.zeros((40, 1, 8, 8), np.uint8)
    y = np.arange(40) % 2
    x[y == 0, :, 4:], x[y == 1, :, :4] = 255, 255
    learner = ER(memory=20, augment="none", device="cpu", seed=0)
    for first in range(0, 40, 10):
        learner.learn(x[first : first + 10], y[first : first + 10])
    path = tmp_path_factory.mktemp("model") / "model.pt"
    file.write_checkpoint(
        path, {**file.checkpoint_content(learner), "class_names": ["above", "below"]}
    )
    return path


DARK_ABOVE = np.repeat(np.array([0, 255], np.uint8), 32).reshape(1, 8, 8)


def found(model, images):
    return list(classify(model, images, "cpu"))


def test_an_opened_learner_knows_the_names_and_saves_them(model, tmp_path):
    learner = open_learner(model, device="cpu")
    learner.save(tmp_path / "again.pt")
    assert learner.class_names == ["above", "below"]
    assert open_learner(tmp_path / "again.pt", device="cpu").class_names == ["above", "below"]
    learner.learn(np.zeros((1, 1, 8, 8), np.uint8), [7])  # which no dataset has named
    learner.save(tmp_path / "again.pt")
    assert open_learner(tmp_path / "again.pt", device="cpu").class_names == ["0", "1", "7"]


def test_labels_that_are_text_are_names(tmp_path):
    learner = ER(memory=20, device="cpu")
    learner.learn(np.stack([DARK_ABOVE, DARK_ABOVE]), ["Bär", "Bär"])
    learner.save(tmp_path / "model.pt")
    (tmp_path / "1.png").write_bytes(formats.encode(DARK_ABOVE))
    assert [entry.label for entry in found(tmp_path / "model.pt", tmp_path)] == ["Bär"]


def test_photos_are_upright_as_they_are_in_folders_of_classes(model, tmp_path):
    (tmp_path / "1.png").write_bytes(formats.encode(DARK_ABOVE))
    (tmp_path / "3.png").write_bytes(formats.encode(DARK_ABOVE, exif=formats.exif(3)))
    assert [entry.label for entry in found(model, tmp_path)] == ["above", "below"]


def test_what_is_no_file_is_named_and_nobody_waits_for_it(model, tmp_path):
    (tmp_path / "a.png").write_bytes(formats.encode(DARK_ABOVE))
    os.mkfifo(tmp_path / "b.png")
    (tmp_path / "c.png").symlink_to("/dev/zero")
    (tmp_path / "d.png").symlink_to("nowhere")

    def try_it():
        for images, wanted in ((tmp_path, "bcd"), (tmp_path / "b.png", "b")):
            bad = [entry for entry in found(model, images) if isinstance(entry, UnreadableImage)]
            assert [entry.path for entry in bad] == [str(tmp_path / f"{n}.png") for n in wanted]
            assert all(entry.path in entry.problem for entry in bad)

    in_child(try_it)


def test_another_format_is_told_in_a_line_that_names_the_file(model, tmp_path):
    (tmp_path / "a.png").write_bytes(formats.encode(DARK_ABOVE, "EPS"))
    done = onepass("predict", model, tmp_path)
    assert (done.status, done.out) == (2, "")
    assert str(tmp_path / "a.png") in done.error and "its format is unknown" in done.error


@pytest.mark.parametrize("names", [["above"], "ab", [1, 2], {"0": "above", "1": "below"}])
def test_class_names_that_do_not_fit_are_told_with_their_checkpoint(model, tmp_path, names):
    path = tmp_path / "model.pt"
    file.write_checkpoint(path, {**file.read_checkpoint(model), "class_names": names})
    (tmp_path / "1.png").write_bytes(formats.encode(DARK_ABOVE))
    done = onepass("predict", path, tmp_path)
    assert done.status == 2 and str(path) in done.error


def test_a_folder_is_scored_in_batches_and_told_in_the_order_of_its_files(
    model, tmp_path, monkeypatch
):
    """Each file has the class that it has alone. Unreadable files between them cost no batch."""
    for number in range(150):
        turned = DARK_ABOVE if number % 3 else 255 - DARK_ABOVE
        (tmp_path / f"{number:03}.png").write_bytes(formats.encode(turned))
    for number in (0, 70):
        (tmp_path / f"{number:03}.png").write_bytes(b"none")
    sizes, scores = [], ER.scores
    monkeypatch.setattr(ER, "scores", lambda self, x: sizes.append(len(x)) or scores(self, x))
    together = found(model, tmp_path)
    assert len(sizes) < 10 and sum(sizes) == 148
    assert [entry.path for entry in together] == sorted(map(str, tmp_path.iterdir()))
    (lone,) = found(model, tmp_path / "001.png")
    assert (lone.label, together[1].label, together[3].label) == ("above", "above", "below")
    assert together[1].score == pytest.approx(lone.score)
    bad = [number for number, entry in enumerate(together) if isinstance(entry, UnreadableImage)]
    assert bad == [0, 70]
