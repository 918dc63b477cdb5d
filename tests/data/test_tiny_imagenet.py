"""Tests of TinyImageNet as a folder or zip: read as Pillow reads it, or refused with a name."""

import re
import shutil
import zipfile
from pathlib import Path

import formats
import numpy as np
import pytest
from formats import truncate
from PIL import Image
from read_datasets import (
    refused,
)

import onepass


@pytest.fixture(params=["folder", "zip"])
def whole_tiny(request, tmp_path, tiny_folder):
    if request.param == "folder":
        shutil.copytree(tiny_folder, tmp_path / "tiny-imagenet")
    else:
        formats.zipped(tiny_folder, tmp_path / "tiny-imagenet-200.zip")
    return onepass.load("tiny-imagenet", root=tmp_path)


def test_tiny_imagenet_has_its_classes_in_the_order_of_wnids(whole_tiny, tiny):
    assert whole_tiny.class_names == tuple(tiny.wnids)
    assert list(whole_tiny.class_names) != sorted(whole_tiny.class_names)
    assert whole_tiny.train_y.tolist() == list(range(200))
    assert whole_tiny.test_y.tolist() == list(reversed(range(200)))


def test_tiny_imagenet_has_the_pixels_of_its_files(whole_tiny, tiny):
    for x, y, colours in (
        (whole_tiny.train_x, whole_tiny.train_y, tiny.train),
        (whole_tiny.test_x, whole_tiny.test_y, tiny.val),
    ):
        assert x.shape == (200, 3, 64, 64)
        wanted = colours[y.numpy(), :, None, None].astype(int)
        assert np.abs(x.numpy().astype(int) - wanted).max() <= 2


def test_tiny_imagenet_is_decoded_as_pillow_does(whole_tiny, tiny_folder):
    for label in (0, 1, 57, 199):
        wnid = whole_tiny.class_names[label]
        path = tiny_folder / "train" / wnid / "images" / f"{wnid}_0.JPEG"
        with Image.open(path) as picture:
            wanted = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
        assert np.array_equal(whole_tiny.train_x[label], wanted)


def test_greyscale_files_of_tiny_imagenet_have_three_like_channels(whole_tiny, tiny):
    grey = whole_tiny.train_x[: tiny.grey]
    assert (grey == grey[:, :1]).all()
    assert not (whole_tiny.train_x[tiny.grey :] == whole_tiny.train_x[tiny.grey :, :1]).all()


def refused_tiny(folder, *said):
    """Asserts that loading fails, both from the folder and from a zip of it."""
    refused("tiny-imagenet", folder, *said, root=folder.parent)
    path = formats.zipped(folder, folder.parent / "packed" / f"{formats.TINY_FOLDER}.zip")
    refused("tiny-imagenet", path, *said, root=path.parent)


def test_a_class_of_tiny_imagenet_without_images_is_named(broken_tiny):
    wnid = (broken_tiny / "wnids.txt").read_text().split()[3]
    for path in (broken_tiny / "train" / wnid / "images").iterdir():
        path.unlink()
    refused_tiny(broken_tiny, wnid)
    shutil.rmtree(broken_tiny / "train" / wnid)
    refused("tiny-imagenet", wnid, root=broken_tiny.parent)


def test_a_duplicate_wnid_is_refused(broken_tiny):
    path = broken_tiny / "wnids.txt"
    path.write_text(path.read_text() + path.read_text().split()[0] + "\n")
    refused_tiny(broken_tiny, "wnids.txt", "twice")


def test_annotations_of_an_absent_image_are_refused(broken_tiny):
    (broken_tiny / "val" / "images" / "val_2.JPEG").unlink()
    refused_tiny(broken_tiny, "val_annotations.txt", "val_2.JPEG")


def test_annotations_of_an_unknown_class_are_refused(broken_tiny):
    path = broken_tiny / "val" / "val_annotations.txt"
    wnid = (broken_tiny / "wnids.txt").read_text().split()[1]
    path.write_text(path.read_text().replace(wnid, "n99999999"))
    refused_tiny(broken_tiny, "val_annotations.txt", "n99999999")


@pytest.mark.parametrize("line", ["val_0.JPEG", "val_0.JPEG n01443537 0 32 44 62", "\\"])
def test_annotations_that_are_not_columns_are_refused(broken_tiny, line):
    path = broken_tiny / "val" / "val_annotations.txt"
    path.write_text(path.read_text() + line + "\n")
    refused_tiny(broken_tiny, "val_annotations.txt")


def test_empty_annotations_are_refused(broken_tiny):
    (broken_tiny / "val" / "val_annotations.txt").write_text("")
    refused_tiny(broken_tiny, "val_annotations.txt")


def test_missing_annotations_are_named(broken_tiny):
    (broken_tiny / "val" / "val_annotations.txt").unlink()
    refused_tiny(broken_tiny, "val_annotations.txt")


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_corrupt_jpeg_is_named(broken_tiny, part):
    path = sorted((broken_tiny / part).rglob("*.JPEG"))[2]
    truncate(path)
    refused("tiny-imagenet", path.relative_to(broken_tiny), "damaged", root=broken_tiny.parent)
    zipped = formats.zipped(broken_tiny, broken_tiny.parent / "packed" / "tiny-imagenet-200.zip")
    refused("tiny-imagenet", path.relative_to(broken_tiny), "damaged", root=zipped.parent)


def test_a_jpeg_of_another_size_is_named(broken_tiny):
    path = sorted(broken_tiny.glob("train/*/images/*.JPEG"))[1]
    path.write_bytes(formats.encode(np.zeros((3, 32, 64), np.uint8), "JPEG"))
    refused("tiny-imagenet", path.name, "64x32", "64x64", root=broken_tiny.parent)


def test_a_number_of_classes_that_is_not_tiny_imagenets_is_refused(tmp_path):
    folder = formats.write_tiny(tmp_path / formats.TINY_FOLDER, formats.tiny(classes=5))
    refused_tiny(folder, "200 classes", "5")


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.9])
def test_a_zip_cut_short_is_named(tmp_path, tiny_folder, keep):
    path = formats.zipped(tiny_folder, tmp_path / "tiny-imagenet-200.zip")
    truncate(path, keep)
    refused("tiny-imagenet", path, root=tmp_path)


def test_a_zip_with_a_damaged_member_is_named(tmp_path, broken_tiny):
    path = formats.zipped(broken_tiny, tmp_path / "packed" / "tiny-imagenet-200.zip")
    with zipfile.ZipFile(path) as archive:
        member = next(
            entry for entry in archive.infolist() if re.search("train.*JPEG", entry.filename)
        )
    content = bytearray(path.read_bytes())
    content[member.header_offset + 30 + len(member.filename) + 40] ^= 0xFF
    path.write_bytes(content)
    refused("tiny-imagenet", path, Path(member.filename).name, root=path.parent)


def test_a_zip_with_a_password_is_named(tmp_path, tiny_folder):
    path = formats.zipped(tiny_folder, tmp_path / "tiny-imagenet-200.zip")
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for match in re.finditer(re.escape(mark), bytes(content)):
            content[match.start() + place] |= 1
    path.write_bytes(content)
    refused("tiny-imagenet", path, root=tmp_path)


def with_member(path, name, content, packing):
    """Replaces one member of a zip by other content."""
    with zipfile.ZipFile(path) as archive:
        whole = {member.filename: archive.read(member) for member in archive.infolist()}
    whole[f"{formats.TINY_FOLDER}/{name}"] = content
    with zipfile.ZipFile(path, "w") as archive:
        for each, held in whole.items():
            archive.writestr(each, held, packing if each.endswith(name) else zipfile.ZIP_STORED, 1)


def test_a_zip_member_that_is_far_too_large_is_named(tmp_path, tiny_folder):
    path = formats.zipped(tiny_folder, tmp_path / "tiny-imagenet-200.zip")
    with_member(path, "val/images/val_7.JPEG", bytes(2**26 + 1), zipfile.ZIP_DEFLATED)
    refused("tiny-imagenet", path, "val/images/val_7.JPEG", 2**26 + 1, root=tmp_path)


def test_a_zip_that_can_only_be_unpacked_at_once_is_named(tmp_path, tiny_folder):
    path = formats.zipped(tiny_folder, tmp_path / "tiny-imagenet-200.zip")
    with_member(path, "wnids.txt", bytes(100), zipfile.ZIP_BZIP2)
    refused("tiny-imagenet", path, "wnids.txt", "compressed", root=tmp_path)


@pytest.mark.parametrize("name", ["wnids.txt", "val/val_annotations.txt"])
def test_a_list_that_is_not_utf_8_is_named(broken_tiny, name):
    path = broken_tiny / name
    path.write_bytes(b"caf\xe9\t" + path.read_bytes())
    refused_tiny(broken_tiny, Path(name).name, "UTF-8")


def test_a_zip_of_something_else_is_named(tmp_path):
    path = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused("tiny-imagenet", path, "wnids.txt", root=tmp_path)
