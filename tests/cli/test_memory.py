"""`onepass memory` shows the memory of a saved learner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from command import onepass, refused
from PIL import Image

import onepass as package
from onepass.learning.checkpoint import file
from onepass.report.contact_sheet import to_uint8


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Saves a learner with three black cats and two white dogs; its memory has room for more."""
    learner = package.ER(memory=10, device="cpu", augment="none")
    pixels = torch.tensor([0, 0, 0, 255, 255], dtype=torch.uint8)
    learner.learn(pixels.view(5, 1, 1, 1).expand(5, 3, 4, 4), [0, 0, 0, 1, 1])
    content = {**file.checkpoint_content(learner), "class_names": ["cat", "dog"]}
    file.write_checkpoint(tmp_path / "pets.pt", content)
    return tmp_path / "pets.pt"


def test_a_sheet_has_a_line_of_images_for_each_class(pets: Path, tmp_path: Path) -> None:
    done = onepass("memory", pets, "-o", tmp_path / "sheet.png")
    assert done.status == 0, done.err
    rows = [line.split() for line in done.out.splitlines() if line]
    assert ["cat", "3", "0", "0"] in rows
    assert ["dog", "2", "255", "0"] in rows
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("L"))
    left = sheet.shape[1] - 3 * 34  # three places of 32 pixels and a gap
    thumbnails = sheet[2:, left:].reshape(2, 34, 3, 34)[:, :32, :, :32]
    assert [[int(entry) for entry in line] for line in thumbnails.mean(axis=(1, 3))] == [
        [0, 0, 0],
        [255, 255, 255],
    ]


@pytest.mark.parametrize("value", [-3.0, 0.0, 1.0, 5.0])
def test_images_of_one_value_are_drawn(value: float) -> None:
    drawn = to_uint8(torch.full((2, 1, 4, 4), value))
    assert drawn.unique().tolist() == [255 if value == 1 else 0]


def test_a_function_that_augments_is_not_missed_where_nothing_trains(tmp_path: Path) -> None:
    learner = package.ER(memory=10, device="cpu", augment=lambda x, generator: x)
    learner.learn(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0, 1])
    learner.save(tmp_path / "model.pt")
    Image.new("L", (4, 4)).save(tmp_path / "black.png")
    for asked in (("memory", tmp_path / "model.pt"), ("predict", tmp_path / "model.pt", tmp_path)):
        assert onepass(*asked).status == 0


def test_vectors_have_numbers_and_no_picture(tmp_path: Path) -> None:
    learner = package.ER(memory=10, device="cpu")
    learner.learn([[1.0, 3.0], [5.0, 5.0]], [7, 9])
    learner.save(tmp_path / "model.pt")
    done = onepass("memory", tmp_path / "model.pt")
    assert ["7", "1", "2", "1"] in [line.split() for line in done.out.splitlines()]
    line = refused("memory", tmp_path / "model.pt", "-o", tmp_path / "sheet.png")
    assert "holds vectors, which cannot be drawn" in line


def test_a_file_without_samples_says_so(tmp_path: Path) -> None:
    learner = package.ER(memory=10, device="cpu")
    learner.learn([[1.0, 3.0], [5.0, 5.0]], [7, 9])
    learner.save(tmp_path / "model.pt", memory=False)
    assert "holds no samples" in refused("memory", tmp_path / "model.pt")
